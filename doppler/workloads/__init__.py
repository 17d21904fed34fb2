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
from doppler.workloads.random_dags import RANDOM_DAGS, erdos_renyi_dag, layered_dag
from doppler.workloads.registry import SCALES, WORKLOADS, make_workload
from doppler.workloads.sharding import InputTile, Operand, PartitionPlan, deal_parts, shard
from doppler.workloads.workload import Workload, build_workload

__all__ = [
    "RANDOM_DAGS",
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
    "erdos_renyi_dag",
    "layered_dag",
    "make_workload",
    "rotary",
    "row_reduction",
    "select",
    "shard",
    "softmax",
]
