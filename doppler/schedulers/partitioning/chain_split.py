"""Chain split: contiguous pieces of a linear arrangement, one per device, least bottleneck.

Source: Tarnawski, Phanishayee, Devanur, Mahajan and Paravecino (2020), "Efficient algorithms for
device placement of DNN graph operators", NeurIPS, who solve it over all ideals of the graph and
linearise where these are too many; the split of a chain into pipeline stages is that of PipeDream
(Narayanan et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from doppler.errors import ConfigurationError
from doppler.problem import PlacementProblem
from doppler.schedulers.base import Proposal, Scheduler, check_count
from doppler.schedulers.partitioning.arrangements import ARRANGEMENTS
from doppler.schedulers.partitioning.chain import best_splits

if TYPE_CHECKING:
    from doppler.simulator import Simulator

CRITERIA = ("makespan", "bottleneck")


class _Splits(NamedTuple):
    """Candidates: devices and orders (M, num_ops), the rest (M,); seconds."""

    devices: np.ndarray
    orders: np.ndarray
    bottlenecks: np.ndarray
    makespans: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class ChainSplit(Scheduler):
    """Arranges the ops in a line and cuts it, by dynamic programming, into a piece per device.

    The cuts minimise the bottleneck: the most that a device is busy with work and with tensors
    coming in and going out, each counted once. Over the contiguous splits of an arrangement this is
    exact where devices are alike; where they differ, pieces go to devices in a fixed sequence (by
    id, fastest first, and slowest first are tried), exact for that sequence. All numbers of pieces
    up to the number of devices, over all arrangements, are candidates; the best is kept.

    The bottleneck is the time per sample of a *pipeline* through which many samples stream. For one
    sample, as here, a piece waits for the piece before it: a contiguous split is good where the
    arrangement lays independent branches side by side (`depth_first` on wide graphs of separate
    branches), and hardly better than one device on deep graphs whose levels depend on one another.

    Ops that must be together count where the first of them is; pinned ops are off the chain, on
    their device. Where some split does not fit in memory, the cuts are sought again among pieces
    whose outputs and inputs fit on their device all at a time, and compared with the rest.

    The order is the arrangement. Takes time quadratic in the places where a cut may be.

    Args:
        arrangements: names of `ARRANGEMENTS`, each once.
        criterion: what the best is best in: the simulated "makespan", or the "bottleneck" (equal
            ones by makespan).
        max_positions: longer arrangements are cut only between this many equally long runs of ops,
            over which the result is exact; at least 1.

    Raises:
        ConfigurationError: no arrangement, an unknown or a repeated one, or an unknown criterion,
            or an impossible number.
    """

    arrangements: Sequence[str] = tuple(ARRANGEMENTS)
    criterion: str = "makespan"
    max_positions: int = 2000
    name: ClassVar[str] = "chain_split"

    def __post_init__(self) -> None:
        check_count("scheduler 'chain_split'", "max_positions", self.max_positions)
        where = "scheduler 'chain_split', arrangements"
        if isinstance(self.arrangements, str) or not isinstance(self.arrangements, Sequence):
            raise ConfigurationError(f"{where}: {self.arrangements!r} is not a list of names")
        object.__setattr__(self, "arrangements", tuple(self.arrangements))
        if not self.arrangements:
            raise ConfigurationError(f"{where}: name at least one of {', '.join(ARRANGEMENTS)}")
        for label in self.arrangements:
            if label not in ARRANGEMENTS:
                raise ConfigurationError(
                    f"{where}: {label!r} is not one of {', '.join(ARRANGEMENTS)}"
                )
            if self.arrangements.count(label) > 1:
                raise ConfigurationError(f"{where}: {label!r} is named twice")
        if self.criterion not in CRITERIA:
            raise ConfigurationError(
                f"scheduler 'chain_split', criterion: {self.criterion!r} is not one of "
                f"{', '.join(CRITERIA)}"
            )

    def propose(
        self, problem: PlacementProblem, simulator: Simulator, rng: np.random.Generator
    ) -> Proposal:
        splits = self._splits(problem, simulator, fit_memory=False)
        if not np.isfinite(splits.makespans).all():
            fitting = self._splits(problem, simulator, fit_memory=True)
            splits = _Splits(*(np.concatenate(pair) for pair in zip(splits, fitting)))
        makespans, seconds = splits.makespans, splits.bottlenecks
        keys = (makespans, seconds) if self.criterion == "makespan" else (seconds, makespans)
        best = int(np.lexsort((keys[1], keys[0], ~np.isfinite(makespans)))[0])
        info = {
            "arrangement": str(splits.labels[best]),
            "bottleneck_seconds": float(seconds[best]),
        }
        return Proposal(
            splits.devices[best].copy(),
            splits.orders[best].copy(),
            len(makespans),
            float(makespans[best]),
            info,
        )

    def _splits(self, problem: PlacementProblem, simulator: Simulator, fit_memory: bool) -> _Splits:
        """The best splits of every arrangement over every sequence and number of devices."""
        placements, orders, bottlenecks, labels = [], [], [], []
        for label in self.arrangements:
            arrangement = ARRANGEMENTS[label](problem)
            for sequence in device_sequences(problem):
                split = best_splits(problem, arrangement, sequence, fit_memory, self.max_positions)
                placements.append(split.placements)
                bottlenecks.append(split.bottlenecks)
                orders.append(np.repeat(arrangement[None], problem.num_devices, axis=0))
                labels.extend([label] * problem.num_devices)
        devices, order = np.concatenate(placements), np.concatenate(orders)
        makespans = simulator.makespans(devices, order)
        return _Splits(devices, order, np.concatenate(bottlenecks), makespans, np.array(labels))


def device_sequences(problem: PlacementProblem) -> list[np.ndarray]:
    """Sequences in which devices get their pieces, each once: by id, fastest, slowest first."""
    seconds = problem.cost_model.op_seconds.sum(axis=0) / problem.topology.compute_slots
    by_id = np.arange(problem.num_devices)
    sequences: list[np.ndarray] = []
    for sequence in (by_id, np.lexsort((by_id, seconds)), np.lexsort((by_id, -seconds))):
        if not any((sequence == known).all() for known in sequences):
            sequences.append(sequence)
    return sequences
