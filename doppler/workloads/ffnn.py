"""FFNN: a feed-forward network of two layers that ends in log-probabilities of classes."""

from __future__ import annotations

from doppler.workloads.program import (
    Input,
    TensorProgram,
    einsum,
    elementwise,
    row_reduction,
)
from doppler.workloads.sharding import PartitionPlan, deal_parts


def ffnn(
    num_shards: int, *, batch: int, features: int, hidden: int, classes: int
) -> tuple[TensorProgram, PartitionPlan]:
    """log_softmax(relu(x W1 + b1) W2 + b2), with batch, hidden and outer widths cut.

    Hidden units are the contraction of the second product and features that of the first, so both
    leave partial products once features are cut (from 8 shards on).

    Args:
        num_shards: shard kernels per matrix product.
        batch, features, hidden, classes: sizes.
    """
    sizes = {"b": batch, "f": features, "h": hidden, "c": classes}
    program = TensorProgram(
        name="ffnn",
        sizes=sizes,
        inputs=(
            Input("x", "bf"),
            Input("W1", "fh", options=(("std", features**-0.5),)),
            Input("b1", "h", options=(("std", 0.1),)),
            Input("W2", "hc", options=(("std", (hidden / 2) ** -0.5),)),
            Input("b2", "c", options=(("std", 0.1),)),
        ),
        statements=(
            einsum("xW1", "bf,fh->bh", "x", "W1"),
            elementwise("layer1", "add", "bh,h->bh", "xW1", "b1"),
            elementwise("active", "relu", "bh->bh", "layer1"),
            einsum("aW2", "bh,hc->bc", "active", "W2"),
            elementwise("logits", "add", "bc,c->bc", "aW2", "b2"),
            row_reduction("peak", "max", "bc->b", "logits"),
            elementwise("shifted", "sub", "bc,b->bc", "logits", "peak"),
            elementwise("exp", "exp", "bc->bc", "shifted"),
            row_reduction("total", "sum", "bc->b", "exp"),
            elementwise("log_probabilities", "sub_log", "bc,b->bc", "shifted", "total"),
        ),
        outputs=("log_probabilities",),
    )
    parts = deal_parts(num_shards, "hbf")
    return program, PartitionPlan({**parts, "c": parts["f"]})
