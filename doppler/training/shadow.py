"""Shadow exploration: what is executed, what is only simulated, and what is known already."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from doppler.schedule import Placement
from doppler.training.journal import placement_digest

WORST = 0.2
"""Placements that are likely to turn out slower than the incumbent by more are not executed."""

LEAST_MARGIN = 0.02
FIRST_MARGIN = 0.05
FEW = 4
"""With fewer errors observed than this, the margin is `FIRST_MARGIN`."""

GROWTH = 0.25
MOST_IDLE = 20

ERROR_QUANTILE = 0.9
CAUTION_QUANTILE = 0.95
CAPACITY = 128


@dataclass(frozen=True)
class Margin:
    """Which predicted ratios to the incumbent are worth an execution.

    Args:
        bias: typical log of (measured ratio / simulated ratio); the incumbent's own simulation
            error for the most part. Predicted ratios have it taken into account.
        error: quantile of |measured ratio / predicted ratio - 1|, 0 while too few are known.
        width: placements are executed up to a predicted ratio of 1 + `width`.
    """

    bias: float
    error: float
    width: float

    def predicted(self, simulated_ratios: np.ndarray) -> np.ndarray:
        """Expected measured ratios. # (rows,)"""
        return simulated_ratios * np.exp(self.bias)


def shadow_margin(log_errors: np.ndarray, most: float, left: float = 1.0, idle: int = 0) -> Margin:
    """The margin that suits what was observed.

    It is as wide as the simulator is wrong, for a placement that is better in truth may look worse
    by as much; but at least `LEAST_MARGIN`, at most `most`, and never so wide that a placement at
    its edge is expected to be slower by more than `WORST`, were it as much slower than predicted as
    the worst twentieth. While nothing is executed it grows by `GROWTH` per update, within these
    bounds: few errors may not be typical ones.

    Args:
        log_errors: log(measured ratio / simulated ratio) of executed placements. # (placements,)
        most: widest margin.
        left: part of the margin that the regret so far leaves, see `doppler.training.regret`.
        idle: updates in a row that executed nothing.
    """
    growth = (1.0 + GROWTH) ** min(idle, MOST_IDLE)
    if len(log_errors) < FEW:
        # So little is known that only what makes placements look slower is believed.
        bias = max(float(np.median(log_errors)), 0.0) if len(log_errors) else 0.0
        return Margin(bias, 0.0, min(FIRST_MARGIN * growth, most) * left)
    bias = float(np.median(log_errors))
    errors = np.expm1(log_errors - bias)
    error = float(np.quantile(np.abs(errors), ERROR_QUANTILE))
    over = max(float(np.quantile(errors, CAUTION_QUANTILE)), FIRST_MARGIN)
    safe = max((1.0 + WORST) / (1.0 + over) - 1.0, 0.0)
    return Margin(bias, error, min(max(error, LEAST_MARGIN) * growth, most, safe) * left)


@dataclass(eq=False)
class Known:
    """A placement that was executed.

    Args:
        placement: with its order.
        log_ratios: to the incumbent, one for each round. # (rounds,)
        challenged: whether it met the incumbent in a test of its own.
    """

    placement: Placement
    log_ratios: list[float]
    challenged: bool = False

    @property
    def log_ratio(self) -> float:
        """The median."""
        return statistics.median(self.log_ratios)


@dataclass(eq=False)
class Ledger:
    """What is known of executed placements, relative to the present incumbent.

    Args:
        entries: by `key`, oldest first, at most `CAPACITY`.
    """

    entries: dict[str, Known] = field(default_factory=dict)

    def add(self, key: str, placement: Placement, log_ratios: Sequence[float]) -> Known:
        """Takes rounds in; they are added to those known of the same placement."""
        known = self.entries.setdefault(key, Known(placement, []))
        known.log_ratios.extend(float(value) for value in log_ratios)
        while len(self.entries) > CAPACITY:
            del self.entries[next(iter(self.entries))]
        return known

    def rebase(self, log_ratio: float) -> None:
        """Makes everything relative to a new incumbent, of this log ratio to the old one."""
        for known in self.entries.values():
            known.log_ratios = [value - log_ratio for value in known.log_ratios]

    def state_dict(self) -> dict[str, Any]:
        rows = list(self.entries.values())
        return {
            "keys": list(self.entries),
            "devices": [torch.tensor(known.placement.devices) for known in rows],
            "orders": [torch.tensor(known.placement.order) for known in rows],
            "log_ratios": [list(known.log_ratios) for known in rows],
            "challenged": [known.challenged for known in rows],
        }

    @classmethod
    def from_state_dict(cls, values: dict[str, Any]) -> Ledger:
        rows = zip(
            values["devices"], values["orders"], values["log_ratios"], values["challenged"],
            strict=True,
        )  # fmt: skip
        known = [
            Known(Placement(devices.numpy(), order.numpy()), list(log_ratios), challenged)
            for devices, order, log_ratios, challenged in rows
        ]
        return cls(dict(zip(values["keys"], known, strict=True)))


def placement_key(placement: Placement, ordered: bool) -> str:
    """A name that equal executions share; the order counts only where the executor reads it."""
    order = placement.order if ordered else None
    return placement_digest(placement.devices, np.empty(0) if order is None else order)
