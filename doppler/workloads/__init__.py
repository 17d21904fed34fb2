"""Workloads: tensor programs cut into shards, whose graphs can be executed; and random graphs."""

from doppler.workloads.kernels import Kernel
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
from doppler.workloads.registry import SCALES, WORKLOADS, make_workload
from doppler.workloads.sharding import InputTile, Operand, PartitionPlan, deal_parts, shard
from doppler.workloads.workload import Workload, build_workload

__all__ = [
    "SCALES",
    "WORKLOADS",
    "Input",
    "InputTile",
    "Kernel",
    "Operand",
    "PartitionPlan",
    "Statement",
    "TensorProgram",
    "Workload",
    "build_workload",
    "deal_parts",
    "einsum",
    "elementwise",
    "make_workload",
    "rotary",
    "row_reduction",
    "select",
    "shard",
    "softmax",
]
