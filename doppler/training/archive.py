"""The best placements seen so far, each with the order that built it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from doppler.training.rollout import Episodes


@dataclass(frozen=True, eq=False)
class Elite:
    """A placement and the order that built it.

    Args:
        makespan: [s]
        placement: device of each op. # (num_ops,)
        order: # (num_ops,)
    """

    makespan: float
    placement: np.ndarray
    order: np.ndarray


@dataclass(eq=False)
class EliteArchive:
    """Up to `capacity` different placements, best first; equal makespans keep the older one.

    Two placements with exactly the same makespan count as one: they usually differ by a renaming
    of equal devices, which teaches an equivariant policy nothing.

    Args:
        capacity: how many to keep.
        makespans: ascending. # [s]
        placements: device of each op. # (num_ops,) each
        orders: # (num_ops,) each
        target: the placement that is imitated where only one is, see `follow`.
    """

    capacity: int
    makespans: list[float] = field(default_factory=list)
    placements: list[np.ndarray] = field(default_factory=list)
    orders: list[np.ndarray] = field(default_factory=list)
    target: Elite | None = None

    def __len__(self) -> int:
        return len(self.makespans)

    def add(self, makespans: np.ndarray, placements: np.ndarray, orders: np.ndarray) -> None:
        """Takes in a batch. # (batch,) [s], (batch, num_ops), (batch, num_ops)"""
        for row in np.argsort(makespans, kind="stable"):
            makespan = float(makespans[row])
            full = len(self) >= self.capacity
            if not np.isfinite(makespan) or (full and makespan >= self.makespans[-1]):
                break
            if makespan in self.makespans:
                continue
            at = int(np.searchsorted(self.makespans, makespan))
            self.makespans.insert(at, makespan)
            self.placements.insert(at, placements[row].copy())
            self.orders.insert(at, orders[row].copy())
            del self.makespans[self.capacity :]
            del self.placements[self.capacity :]
            del self.orders[self.capacity :]

    def follow(self, margin: float) -> Elite | None:
        """The target; it gives way to the best placement once that is better by a margin.

        A slightly better placement is often another one altogether, and a policy that is shown
        another one every time learns none.

        Args:
            margin: least relative gain.
        """
        if len(self) and (
            self.target is None or self.makespans[0] < (1.0 - margin) * self.target.makespan
        ):
            self.target = Elite(self.makespans[0], self.placements[0], self.orders[0])
        return self.target

    def sample(
        self, count: int, rng: np.random.Generator, best: int | None = None
    ) -> Episodes | None:
        """Some of them as episodes to follow, drawn evenly with repetition; None while empty.

        Args:
            count: how many episodes.
            rng: draws.
            best: only so many of the best placements, all of them where None.
        """
        if not len(self) or count < 1:
            return None
        pool = len(self) if best is None else min(best, len(self))
        rows = rng.integers(pool, size=count)
        return Episodes.from_placements(
            np.stack([self.placements[row] for row in rows]),
            np.stack([self.orders[row] for row in rows]),
        )

    def state_dict(self) -> dict[str, Any]:
        return {
            "capacity": self.capacity,
            "makespans": list(self.makespans),
            "placements": [torch.from_numpy(row) for row in self.placements],
            "orders": [torch.from_numpy(row) for row in self.orders],
            "target": None
            if self.target is None
            else {
                "makespan": self.target.makespan,
                "devices": torch.from_numpy(self.target.placement),
                "order": torch.from_numpy(self.target.order),
            },
        }

    @classmethod
    def from_state_dict(cls, values: dict[str, Any]) -> EliteArchive:
        target = values.get("target")  # runs of earlier versions have none
        return cls(
            values["capacity"],
            list(values["makespans"]),
            [row.numpy() for row in values["placements"]],
            [row.numpy() for row in values["orders"]],
            None
            if target is None
            else Elite(target["makespan"], target["devices"].numpy(), target["order"].numpy()),
        )
