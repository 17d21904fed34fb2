"""Llama: one transformer block of the Llama family, alone or with mask, last norm and head.

Tokens are cut by sequence and by batch, heads, feed-forward units and vocabulary by tensor
parallelism. So the output and the down projection leave partial products, and attention needs keys
and values of the whole sequence, which are re-assembled from their tiles.
"""

from __future__ import annotations

import math

from doppler.errors import ConfigurationError
from doppler.workloads.program import (
    Input,
    Statement,
    TensorProgram,
    einsum,
    elementwise,
    rotary,
    row_reduction,
    select,
    softmax,
)
from doppler.workloads.sharding import PartitionPlan, deal_parts

EPSILON = 1e-5
"""Added to the mean square in the norms, as in Llama 2."""

ROTARY_BASE = 10_000.0
"""Base of the rotary angles, as in Llama 2."""


def llama_block(
    num_shards: int, *, batch: int, sequence: int, hidden: int, feed_forward: int, heads: int
) -> tuple[TensorProgram, PartitionPlan]:
    """Norm, attention with rotary embedding, norm and SwiGLU, with residuals; no mask.

    Like the published Llama-block, this holds attention and feed-forward both.

    Args:
        num_shards: shard kernels per matrix product.
        batch, sequence, hidden, feed_forward, heads: sizes.

    Raises:
        ConfigurationError: if the heads do not divide the hidden width into even widths.
    """
    sizes = _sizes(batch, sequence, hidden, feed_forward, heads)
    program = TensorProgram(
        name="llama_block",
        sizes=sizes,
        inputs=_block_inputs(sizes),
        statements=(*_attention(sizes, masked=False), *_feed_forward(sizes)),
        outputs=("y",),
    )
    return program, PartitionPlan(_parts(num_shards))


def llama_layer(
    num_shards: int,
    *,
    batch: int,
    sequence: int,
    hidden: int,
    feed_forward: int,
    heads: int,
    vocabulary: int,
) -> tuple[TensorProgram, PartitionPlan]:
    """The block with a causal mask, then last norm and head on the last position.

    As in the published Llama-layer; its results are the block's output and the logits.

    Args:
        num_shards: shard kernels per matrix product.
        batch, sequence, hidden, feed_forward, heads, vocabulary: sizes.

    Raises:
        ConfigurationError: if the heads do not divide the hidden width into even widths.
    """
    sizes = {**_sizes(batch, sequence, hidden, feed_forward, heads), "v": vocabulary, "o": 1}
    program = TensorProgram(
        name="llama_layer",
        sizes=sizes,
        inputs=(
            *_block_inputs(sizes),
            Input("mask", "st", "causal"),
            Input("gain3", "d", options=(("mean", 1.0), ("std", 0.1))),
            _weight("Whead", "dv", hidden),
        ),
        statements=(
            *_attention(sizes, masked=True),
            *_feed_forward(sizes),
            select("last", "bsd->bod", "y", start=sequence - 1),
            *_norm("norm3", "bod", "last", "gain3", hidden),
            einsum("logits", "bod,dv->bov", "norm3", "Whead"),
        ),
        outputs=("y", "logits"),
    )
    parts = _parts(num_shards)
    # The head's one position cannot be cut, so its vocabulary takes the parts of the sequence too.
    return program, PartitionPlan({**parts, "v": parts["h"] * parts["s"]})


def _sizes(batch: int, sequence: int, hidden: int, feed_forward: int, heads: int) -> dict[str, int]:
    """Label sizes: s and t are query and key positions, e is a head's width, p half of it."""
    if hidden % (2 * heads):
        raise ConfigurationError(
            f"llama: hidden {hidden} is not divisible by 2 x heads = {2 * heads}; each head needs "
            "an even width for its rotary embedding"
        )
    width = hidden // heads
    return {
        "b": batch,
        "s": sequence,
        "t": sequence,
        "d": hidden,
        "h": heads,
        "e": width,
        "p": width // 2,
        "f": feed_forward,
    }


def _parts(num_shards: int) -> dict[str, int]:
    parts = deal_parts(num_shards, "hsb")
    return {**parts, "f": parts["h"]}


def _weight(name: str, labels: str, fan_in: int) -> Input:
    return Input(name, labels, options=(("std", fan_in**-0.5),))


def _block_inputs(sizes: dict[str, int]) -> tuple[Input, ...]:
    hidden = sizes["d"]
    gain = (("mean", 1.0), ("std", 0.1))
    base = (("base", ROTARY_BASE),)
    return (
        Input("x", "bsd"),
        Input("cos", "sp", "rotary_cos", base),
        Input("sin", "sp", "rotary_sin", base),
        Input("gain1", "d", options=gain),
        _weight("Wq", "dhe", hidden),
        _weight("Wk", "dhe", hidden),
        _weight("Wv", "dhe", hidden),
        _weight("Wo", "hed", hidden),
        Input("gain2", "d", options=gain),
        _weight("Wgate", "df", hidden),
        _weight("Wup", "df", hidden),
        _weight("Wdown", "fd", sizes["f"]),
    )


def _norm(name: str, labels: str, x: str, gain: str, width: int) -> tuple[Statement, ...]:
    """Root-mean-square norm over the label d (Zhang and Sennrich 2019)."""
    rows = labels.replace("d", "")
    return (
        row_reduction(f"{name}_squares", "sum_squares", f"{labels}->{rows}", x),
        elementwise(
            f"{name}_root",
            "inverse_root",
            f"{rows}->{rows}",
            f"{name}_squares",
            count=width,
            epsilon=EPSILON,
        ),
        elementwise(f"{name}_unit", "mul", f"{labels},{rows}->{labels}", x, f"{name}_root"),
        elementwise(name, "mul", f"{labels},d->{labels}", f"{name}_unit", gain),
    )


def _attention(sizes: dict[str, int], masked: bool) -> tuple[Statement, ...]:
    """From the input x to the residual sum `attended`."""
    mask = (elementwise("masked", "add", "bhst,st->bhst", "scaled", "mask"),) if masked else ()
    return (
        *_norm("norm1", "bsd", "x", "gain1", sizes["d"]),
        einsum("q", "bsd,dhe->bshe", "norm1", "Wq"),
        einsum("k", "bsd,dhe->bshe", "norm1", "Wk"),
        einsum("v", "bsd,dhe->bshe", "norm1", "Wv"),
        rotary("q_turned", "bshe,sp,sp->bshe", ("q", "cos", "sin"), over="e"),
        rotary("k_turned", "bshe,sp,sp->bshe", ("k", "cos", "sin"), over="e"),
        einsum("scores", "bshe,bthe->bhst", "q_turned", "k_turned"),
        elementwise("scaled", "scale", "bhst->bhst", "scores", factor=1 / math.sqrt(sizes["e"])),
        *mask,
        softmax("weights", "bhst->bhst", "masked" if masked else "scaled", over="t"),
        einsum("heads", "bhst,bthe->bshe", "weights", "v"),
        einsum("projected", "bshe,hed->bsd", "heads", "Wo"),
        elementwise("attended", "add", "bsd,bsd->bsd", "x", "projected"),
    )


def _feed_forward(sizes: dict[str, int]) -> tuple[Statement, ...]:
    """From `attended` to the block's output y (SwiGLU, Shazeer 2020)."""
    return (
        *_norm("norm2", "bsd", "attended", "gain2", sizes["d"]),
        einsum("gate", "bsd,df->bsf", "norm2", "Wgate"),
        einsum("up", "bsd,df->bsf", "norm2", "Wup"),
        elementwise("gate_active", "silu", "bsf->bsf", "gate"),
        elementwise("gated", "mul", "bsf,bsf->bsf", "gate_active", "up"),
        einsum("down", "bsf,fd->bsd", "gated", "Wdown"),
        elementwise("y", "add", "bsd,bsd->bsd", "attended", "down"),
    )
