"""Tensor programs: unsharded statements over labelled tensors, and their reference interpreter.

A program is what a workload computes before anything is cut. Every label is one letter and has one
size in the whole program; a statement names its operands' and its output's labels as in an einsum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from doppler.errors import ConfigurationError
from doppler.workloads.functions import ELEMENTWISE, ROW_REDUCTIONS, compute, split_spec

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Input:
    """A tensor that the program is given.

    Args:
        name: unique in its program.
        labels: one letter per axis.
        fill: how `doppler.workloads.inputs` draws it.
        options: constants of the fill, as (name, value) pairs.
    """

    name: str
    labels: str
    fill: str = "normal"
    options: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class Statement:
    """One meta-op: `name = function(operands)`. Make it with the functions below the class.

    Args:
        name: names the value that is computed.
        kind: kind of the shard kernels, a key of `doppler.workloads.functions.RUNNERS`.
        function: what exactly, within the kind.
        spec: labels of operands and output, for example "bf,fh->bh".
        operands: names of inputs or earlier statements.
        options: constants of the function, as (name, value) pairs.
        whole: labels that must not be cut, because the kernel needs them from end to end.
    """

    name: str
    kind: str
    function: str
    spec: str
    operands: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    whole: str = ""

    @cached_property
    def operand_labels(self) -> tuple[str, ...]:
        return split_spec(self.spec)[0]

    @cached_property
    def output_labels(self) -> str:
        return split_spec(self.spec)[1]

    @cached_property
    def reduced_labels(self) -> str:
        """Labels of the operands that the output lacks, in order of appearance."""
        seen = dict.fromkeys("".join(self.operand_labels))
        return "".join(label for label in seen if label not in self.output_labels)

    @property
    def combine(self) -> str:
        """How partial results over a cut reduced label become one: "sum" or "max"."""
        return ROW_REDUCTIONS[self.function][0] if self.kind == "row_reduction" else "sum"


def einsum(name: str, spec: str, *operands: str) -> Statement:
    """A sum of products of one or two operands."""
    return Statement(name, "einsum", "einsum", spec, operands)


def elementwise(name: str, function: str, spec: str, *operands: str, **options: float) -> Statement:
    """A map of one or two operands; labels that an operand lacks are broadcast."""
    constants = tuple(sorted(options.items()))
    return Statement(name, "elementwise", function, spec, operands, constants)


def row_reduction(name: str, function: str, spec: str, operand: str) -> Statement:
    """A maximum, sum or sum of squares over the labels that the output lacks; these may be cut."""
    return Statement(name, "row_reduction", function, spec, (operand,))


def softmax(name: str, spec: str, operand: str, over: str) -> Statement:
    """A softmax over one label, which cannot be cut."""
    return Statement(name, "softmax", "softmax", spec, (operand,), (("over", over),), over)


def rotary(name: str, spec: str, operands: tuple[str, str, str], over: str) -> Statement:
    """Rotary position embedding of (tensor, cosines, sines) over a label, in two halves.

    The last label of both tables runs over half of `over`; neither can be cut.

    Source: Su et al. (2021), RoFormer, in the half-split layout of the public Llama weights.
    """
    tables = split_spec(spec)[0][1:]
    whole = over + "".join(dict.fromkeys(labels[-1] for labels in tables))
    return Statement(name, "rotary", "rotary", spec, operands, (("over", over),), whole)


def select(name: str, spec: str, operand: str, start: int) -> Statement:
    """A slice: the operand's label that the output lacks becomes a shorter one, from `start` on."""
    return Statement(name, "select", "select", spec, (operand,), (("start", start),))


@dataclass(frozen=True)
class TensorProgram:
    """Inputs, statements in order of execution, and the names of the results.

    Args:
        name: shown in messages.
        sizes: size of each label.
        inputs: tensors that the program is given.
        statements: meta-ops; each uses only inputs and earlier statements.
        outputs: names of the statements whose values are the results.

    Raises:
        ConfigurationError: naming program, statement and label, if anything does not fit.
    """

    name: str
    sizes: Mapping[str, int]
    inputs: tuple[Input, ...]
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    labels: dict[str, str] = field(init=False, repr=False)  # of every value

    def __post_init__(self) -> None:
        labels: dict[str, str] = {}
        for declared in self.inputs:
            self._check_labels(f"input {declared.name!r}", declared.labels)
            self._define(labels, declared.name, declared.labels)
        for statement in self.statements:
            self._check_statement(statement, labels)
            self._define(labels, statement.name, statement.output_labels)
        used = {name for statement in self.statements for name in statement.operands}
        for name in self.outputs:
            if name not in {statement.name for statement in self.statements}:
                raise ConfigurationError(f"program {self.name!r}: output {name!r} is no statement")
        idle = [name for name in labels if name not in used and name not in self.outputs]
        if idle:
            raise ConfigurationError(f"program {self.name!r}: nothing uses {idle[0]!r}")
        object.__setattr__(self, "labels", labels)

    def shape(self, labels: str) -> tuple[int, ...]:
        """Shape of a tensor with these labels."""
        return tuple(self.sizes[label] for label in labels)

    def run(self, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs the program unsharded, on the inputs' device; drops values after their last use.

        Args:
            inputs: a tensor per input name, of the input's shape.

        Returns:
            The outputs by name.
        """
        values = dict(inputs)
        uses = Counter(name for statement in self.statements for name in statement.operands)
        uses.update(self.outputs)
        for statement in self.statements:
            operands = [values[name] for name in statement.operands]
            values[statement.name] = compute(
                statement.kind,
                statement.function,
                statement.spec,
                self.unsharded_options(statement),
                operands,
            )
            uses.subtract(statement.operands)
            for name in set(statement.operands):
                if not uses[name]:
                    del values[name]
        return {name: values[name] for name in self.outputs}

    def unsharded_options(self, statement: Statement) -> dict[str, Any]:
        """The statement's options as its kernel takes them when nothing is cut."""
        if statement.kind != "select":
            return dict(statement.options)
        shape = self.shape(statement.output_labels)
        source = tuple(self.select_region(statement, tuple((0, size) for size in shape)))
        target = tuple((0, size) for size in shape)
        return {"shape": shape, "pieces": ((target, source),)}

    def select_region(
        self, statement: Statement, region: tuple[tuple[int, int], ...]
    ) -> tuple[tuple[int, int], ...]:
        """The part of a select's operand that makes up a region of its output."""
        start = dict(statement.options)["start"]
        (labels,), output = statement.operand_labels, statement.output_labels
        bounds = dict(zip(output, region, strict=True))
        (renamed,) = (label for label in output if label not in labels)
        low, high = bounds[renamed]
        return tuple(
            bounds[label] if label in bounds else (start + low, start + high) for label in labels
        )

    def _define(self, labels: dict[str, str], name: str, value_labels: str) -> None:
        if name in labels:
            raise ConfigurationError(f"program {self.name!r}: {name!r} is defined twice")
        labels[name] = value_labels

    def _check_labels(self, where: str, labels: str) -> None:
        if len(set(labels)) != len(labels):
            raise ConfigurationError(
                f"program {self.name!r}, {where}: a label is repeated in {labels!r}"
            )
        for label in labels:
            size = self.sizes.get(label)
            if size is None or size < 1:
                raise ConfigurationError(
                    f"program {self.name!r}, {where}: label {label!r} has size {size}, at least 1 "
                    "is needed"
                )

    def _check_statement(self, statement: Statement, labels: Mapping[str, str]) -> None:
        where = f"program {self.name!r}, statement {statement.name!r}"
        if len(statement.operand_labels) != len(statement.operands):
            raise ConfigurationError(
                f"{where}: {len(statement.operands)} operands for the spec {statement.spec!r}"
            )
        for name, used in zip(statement.operands, statement.operand_labels):
            if name not in labels:
                raise ConfigurationError(f"{where}: operand {name!r} is not defined before it")
            self._check_labels(f"statement {statement.name!r}", used)
            if self.shape(used) != self.shape(labels[name]):
                raise ConfigurationError(
                    f"{where}: operand {name!r} has labels {labels[name]!r} and shape "
                    f"{self.shape(labels[name])}, the spec {statement.spec!r} says "
                    f"{self.shape(used)}"
                )
        self._check_labels(f"statement {statement.name!r}", statement.output_labels)
        _check_kind(where, statement, self.sizes)


def _check_kind(where: str, statement: Statement, sizes: Mapping[str, int]) -> None:
    """Checks what a statement's kind demands of its function and labels."""
    kind, output = statement.kind, statement.output_labels
    given = set("".join(statement.operand_labels))
    kinds = ("einsum", "elementwise", "row_reduction", "softmax", "rotary", "select")
    if kind not in kinds:
        raise ConfigurationError(f"{where}: no kind {kind!r}; the kinds are {', '.join(kinds)}")
    tables: dict[str, list[str]] = {
        "elementwise": list(ELEMENTWISE),
        "row_reduction": list(ROW_REDUCTIONS),
    }
    if kind in tables and statement.function not in tables[kind]:
        raise ConfigurationError(
            f"{where}: no {kind} function {statement.function!r}; the functions are "
            f"{', '.join(tables[kind])}"
        )
    if kind == "select":
        renamed = [label for label in output if label not in given]
        start = dict(statement.options)["start"]
        if len(renamed) != 1 or len(statement.reduced_labels) != 1:
            raise ConfigurationError(f"{where}: a select replaces exactly one label")
        if not 0 <= start <= sizes[statement.reduced_labels] - sizes[renamed[0]]:
            raise ConfigurationError(f"{where}: start {start} leaves the operand")
        return
    if missing := [label for label in output if label not in given]:
        raise ConfigurationError(f"{where}: no operand has the output's label {missing[0]!r}")
    if kind == "elementwise":
        arity = ELEMENTWISE[statement.function][0]
        if len(statement.operands) != arity:
            raise ConfigurationError(
                f"{where}: {statement.function!r} takes {arity} operands, not "
                f"{len(statement.operands)}"
            )
    if kind in ("elementwise", "softmax") and statement.reduced_labels:
        raise ConfigurationError(f"{where}: a {kind} cannot drop label {statement.reduced_labels}")
    if kind == "einsum" and not 1 <= len(statement.operands) <= 2:
        raise ConfigurationError(f"{where}: an einsum takes one or two operands")
    if kind == "rotary" and sizes[statement.whole[0]] != 2 * sizes[statement.whole[-1]]:
        raise ConfigurationError(
            f"{where}: label {statement.whole[0]!r} must be twice as long as the tables' "
            f"{statement.whole[-1]!r}"
        )
