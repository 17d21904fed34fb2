"""What the statements of a tensor program compute, on torch tensors, and how much work that is.

One table serves shard kernels and the unsharded interpreter alike; torch is imported when something
is computed, never at import. Specs are einsum-like: one letter per label, "bf,fh->bh".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

ELEMENTWISE: dict[str, tuple[int, float]] = {
    "add": (2, 1.0),
    "sub": (2, 1.0),
    "mul": (2, 1.0),
    "div": (2, 1.0),
    "sub_log": (2, 2.0),  # a - log(b)
    "relu": (1, 1.0),
    "exp": (1, 1.0),
    "scale": (1, 1.0),  # factor * a
    "silu": (1, 4.0),  # a / (1 + exp(-a))
    "gelu": (1, 8.0),  # the tanh form
    "inverse_root": (1, 3.0),  # 1 / sqrt(a / count + epsilon)
}
"""Elementwise functions: how many operands, FLOP per output element (a transcendental counts 1)."""

ROW_REDUCTIONS: dict[str, tuple[str, float]] = {
    "max": ("max", 1.0),
    "sum": ("sum", 1.0),
    "sum_squares": ("sum", 2.0),
}
"""Reductions over labels: how partial results combine, FLOP per operand element."""

SOFTMAX_FLOPS = 5.0  # max, subtract, exp, sum, divide, per element
ROTARY_FLOPS = 3.0  # four products and two sums per pair of elements


def split_spec(spec: str) -> tuple[tuple[str, ...], str]:
    """Splits "bf,fh->bh" into (("bf", "fh"), "bh")."""
    left, _, right = spec.partition("->")
    return tuple(left.split(",")), right


def compute(
    kind: str,
    function: str,
    spec: str,
    options: Mapping[str, Any],
    operands: Sequence[torch.Tensor],
) -> torch.Tensor:
    """Computes one statement or one shard of it.

    Args:
        kind: a key of `RUNNERS`.
        function: what exactly, within the kind.
        spec: labels of operands and output.
        options: constants of the function.
        operands: one tensor per operand of the spec.

    Returns:
        A contiguous tensor that shares no memory with an operand.
    """
    result = RUNNERS[kind](function, spec, options, operands).contiguous()
    storages = {operand.untyped_storage().data_ptr() for operand in operands}
    return result.clone() if result.untyped_storage().data_ptr() in storages else result


def work(
    kind: str,
    function: str,
    spec: str,
    operand_shapes: Sequence[tuple[int, ...]],
    output_shape: tuple[int, ...],
) -> float:
    """Work of one statement or shard; a matrix product counts 2 M N K. [FLOP]"""
    operand_labels, _ = split_spec(spec)
    if kind == "einsum":
        sizes: dict[str, int] = {}
        for labels, shape in zip(operand_labels, operand_shapes, strict=True):
            sizes.update(zip(labels, shape, strict=True))
        return float(math.prod(sizes.values())) * len(operand_shapes)
    if kind == "elementwise":
        return ELEMENTWISE[function][1] * math.prod(output_shape)
    if kind == "row_reduction":
        return ROW_REDUCTIONS[function][1] * math.prod(operand_shapes[0])
    if kind == "reduction":
        return float((len(operand_shapes) - 1) * math.prod(output_shape))
    per_element = {"softmax": SOFTMAX_FLOPS, "rotary": ROTARY_FLOPS}.get(kind, 0.0)
    return per_element * math.prod(output_shape)


def _einsum(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    import torch

    return torch.einsum(spec, *operands)


def _elementwise(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    import torch

    operand_labels, output = split_spec(spec)
    aligned = [_align(x, labels, output) for x, labels in zip(operands, operand_labels)]
    a, b = aligned[0], aligned[-1]
    match function:
        case "add":
            return a + b
        case "sub":
            return a - b
        case "mul":
            return a * b
        case "div":
            return a / b
        case "sub_log":
            return a - torch.log(b)
        case "relu":
            return torch.relu(a)
        case "exp":
            return torch.exp(a)
        case "scale":
            return a * options["factor"]
        case "silu":
            return torch.nn.functional.silu(a)
        case "gelu":
            return torch.nn.functional.gelu(a, approximate="tanh")
        case "inverse_root":
            return torch.rsqrt(a / options["count"] + options["epsilon"])
    raise ValueError(f"elementwise function {function!r} has no kernel")


def _align(tensor: torch.Tensor, labels: str, output: str) -> torch.Tensor:
    """Permutes to the output's label order and gives missing labels size 1, so it broadcasts."""
    present = [label for label in output if label in labels]
    tensor = tensor.permute([labels.index(label) for label in present])
    for axis, label in enumerate(output):
        if label not in labels:
            tensor = tensor.unsqueeze(axis)
    return tensor


def _row_reduction(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    (labels,), output = split_spec(spec)
    axes = [axis for axis, label in enumerate(labels) if label not in output]
    x = operands[0]
    reduced = {
        "max": lambda: x.amax(axes),
        "sum": lambda: x.sum(axes),
        "sum_squares": lambda: (x * x).sum(axes),
    }[function]()
    kept = "".join(label for label in labels if label in output)
    return _align(reduced, kept, output)


def _softmax(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    return operands[0].softmax(split_spec(spec)[1].index(options["over"]))


def _rotary(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Rotates the pairs (x[i], x[i + half]) of the label `over` by each position's angles."""
    import torch

    operand_labels, output = split_spec(spec)
    over = options["over"]
    x = operands[0]
    low, high = x.chunk(2, dim=output.index(over))
    # The tables' last label runs over half of `over`; align it to where `over` stands in x.
    tables = [
        _align(table, labels[:-1] + over, output)
        for table, labels in zip(operands[1:], operand_labels[1:])
    ]
    cos, sin = tables
    return torch.cat([low * cos - high * sin, high * cos + low * sin], dim=output.index(over))


def _combine(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Combines partial results, in operand order so that the sum is reproducible."""
    import torch

    combine = torch.maximum if function == "max" else torch.add
    result = combine(operands[0], operands[1])
    for partial in operands[2:]:
        combine(result, partial, out=result)
    return result


def _gather(
    function: str, spec: str, options: Mapping[str, Any], operands: Sequence[torch.Tensor]
) -> torch.Tensor:
    """Copies slices of tiles to their places in a new tile."""
    result = operands[0].new_empty(options["shape"])
    for operand, (target, source) in zip(operands, options["pieces"], strict=True):
        result[tuple(slice(*s) for s in target)] = operand[tuple(slice(*s) for s in source)]
    return result


Runner = Callable[[str, str, Mapping[str, Any], "Sequence[torch.Tensor]"], "torch.Tensor"]

RUNNERS: dict[str, Runner] = {
    "einsum": _einsum,
    "elementwise": _elementwise,
    "row_reduction": _row_reduction,
    "softmax": _softmax,
    "rotary": _rotary,
    "reduction": _combine,
    "assembly": _gather,
    "select": _gather,
}
"""How each kind of op computes."""
