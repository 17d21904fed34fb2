"""ChainMM: A B + C (D E), a chain of block matrix products."""

from __future__ import annotations

from doppler.workloads.program import Input, TensorProgram, einsum, elementwise
from doppler.workloads.sharding import PartitionPlan, deal_parts


def chainmm(num_shards: int, *, block: int) -> tuple[TensorProgram, PartitionPlan]:
    """ChainMM over blocks; with 16 shards each kernel multiplies two block x block matrices.

    That gives the published graph: 36 input tiles, 48 products, 20 reductions and 8 sums.

    Args:
        num_shards: shard kernels per product.
        block: the matrices are 2 or 4 blocks wide and high.
    """
    sizes = {"i": 4 * block, "k": 2 * block, "j": 2 * block, "l": 2 * block, "m": 4 * block}

    def matrix(name: str, labels: str, inner: str) -> Input:
        return Input(name, labels, options=(("std", sizes[inner] ** -0.25),))

    program = TensorProgram(
        name="chainmm",
        sizes=sizes,
        inputs=(
            matrix("A", "ik", "k"),
            matrix("B", "kj", "k"),
            Input("C", "il", options=(("std", sizes["l"] ** -0.5),)),
            matrix("D", "lm", "m"),
            matrix("E", "mj", "m"),
        ),
        statements=(
            einsum("AB", "ik,kj->ij", "A", "B"),
            einsum("DE", "lm,mj->lj", "D", "E"),
            einsum("CDE", "il,lj->ij", "C", "DE"),
            elementwise("sum", "add", "ij,ij->ij", "AB", "CDE"),
        ),
        outputs=("sum",),
    )
    middle = deal_parts(num_shards, "mlj")
    return program, PartitionPlan(
        {**deal_parts(num_shards, "ikj"), "m": middle["m"], "l": middle["l"]}
    )
