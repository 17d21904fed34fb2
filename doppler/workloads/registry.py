"""The workloads by name, with their sizes at each scale."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from doppler.errors import ConfigurationError
from doppler.workloads.chainmm import chainmm
from doppler.workloads.ffnn import ffnn
from doppler.workloads.llama import llama_block, llama_layer
from doppler.workloads.program import TensorProgram
from doppler.workloads.sharding import PartitionPlan
from doppler.workloads.workload import Workload, build_workload

SCALES = ("host", "paper")
"""`host`: 50 to 500 ms on two CPU cores. `paper`: the published magnitudes, for simulation."""


@dataclass(frozen=True)
class Recipe:
    """How to make a workload.

    Args:
        build: from the number of shards and the sizes to a program and its partition plan.
        num_shards: default number of shard kernels per matrix product.
        sizes: the sizes that `build` takes, by scale.
    """

    build: Callable[..., tuple[TensorProgram, PartitionPlan]]
    num_shards: int
    sizes: Mapping[str, Mapping[str, int]]


_LLAMA_HOST = {"batch": 2, "sequence": 512, "hidden": 768, "feed_forward": 2048, "heads": 12}
_LLAMA_PAPER = {"batch": 8, "sequence": 4096, "hidden": 4096, "feed_forward": 11008, "heads": 32}

WORKLOADS: dict[str, Recipe] = {
    "chainmm": Recipe(chainmm, 16, {"host": {"block": 576}, "paper": {"block": 10_000}}),
    "ffnn": Recipe(
        ffnn,
        32,
        {
            "host": {"batch": 1024, "features": 1024, "hidden": 5120, "classes": 1024},
            # 2^36 multiply-adds per matrix product kernel, as published.
            "paper": {"batch": 2**15, "features": 2**11, "hidden": 2**15, "classes": 2**11},
        },
    ),
    "llama_block": Recipe(llama_block, 8, {"host": _LLAMA_HOST, "paper": _LLAMA_PAPER}),
    "llama_layer": Recipe(
        llama_layer,
        8,
        {
            "host": {**_LLAMA_HOST, "vocabulary": 4096},
            "paper": {**_LLAMA_PAPER, "vocabulary": 32_000},
        },
    ),
}
"""Every workload by name."""


def make_workload(
    name: str, scale: str = "host", num_shards: int | None = None, **sizes: int
) -> Workload:
    """Makes a workload; allocates no tensors.

    Args:
        name: a key of `WORKLOADS`.
        scale: one of `SCALES`.
        num_shards: shard kernels per matrix product; None for the workload's default.
        **sizes: replace single sizes of the scale.

    Raises:
        ConfigurationError: unknown workload, scale or size, a size that is no count, or shards that
            do not divide the sizes.
    """
    if name not in WORKLOADS:
        raise ConfigurationError(
            f"workload {name!r} is unknown; the workloads are {', '.join(WORKLOADS)}"
        )
    if scale not in SCALES:
        raise ConfigurationError(
            f"workload {name!r}, scale: {scale!r} is unknown; the scales are {', '.join(SCALES)}"
        )
    recipe = WORKLOADS[name]
    defaults = recipe.sizes[scale]
    for size, value in sizes.items():
        if size not in defaults:
            raise ConfigurationError(
                f"workload {name!r}: no size {size!r}; the sizes are {', '.join(defaults)}"
            )
        _check_count(name, size, value)
    if num_shards is None:
        num_shards = recipe.num_shards
    _check_count(name, "num_shards", num_shards)
    program, plan = recipe.build(num_shards, **{**defaults, **sizes})
    return build_workload(name, f"{name}-{scale}-{num_shards}", program, plan)


def _check_count(name: str, label: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigurationError(
            f"workload {name!r}, {label}: {value!r} is not a whole number above 0"
        )
