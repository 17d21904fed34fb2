"""Picklable workloads whose kernels misbehave on demand, for ranks in other processes."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import torch
from executor_fakes import FakeWorkload

from doppler.graph import DataflowGraph


@dataclass(frozen=True)
class Adder:
    """constant + the sum of the operands."""

    constant: float

    def __call__(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        total = operands[0] + self.constant
        for operand in operands[1:]:
            total += operand
        return total


@dataclass(frozen=True)
class Faulty(Adder):
    """Does what a file says before it adds: "raise", "die", "hang", or nothing."""

    orders: Path

    def __call__(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        order = self.orders.read_text()
        if order == "raise":
            raise ValueError("no such luck")
        if order == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if order == "hang":
            time.sleep(60.0)
        if order == "spoil":
            operands[0].add_(1.0)
        return super().__call__(operands)


def rank_workload(
    graph: DataflowGraph,
    faulty: int | None = None,
    orders: Path | None = None,
    shape: tuple[int, ...] = (8, 8),
) -> FakeWorkload:
    """A `FakeWorkload` that can be pickled; op `faulty` does what the file `orders` says."""
    kernels = []
    for op in range(graph.num_ops):
        run = Adder(op + 1.0)
        if op == faulty and orders is not None:
            run = Faulty(op + 1.0, orders)
        kernels.append(SimpleNamespace(signature=f"add_{op}", run=run))
    return FakeWorkload(graph, shape, kernels=kernels)
