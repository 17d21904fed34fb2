"""What computes makespans for a simulator: tables, priorities, and which kernel serves them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from doppler.checks import whole_number
from doppler.simulator import bulk_synchronous, kernel
from doppler.simulator.fifo import NOT_FIFO, FifoTables, fifo_batch, fifo_one, fifo_tables
from doppler.simulator.noise import NoiseFactors
from doppler.simulator.tables import Scratch, Tables, TransferScratch, permuted_rows
from doppler.simulator.threads import map_chunks


@dataclass(frozen=True, eq=False)
class Engine:
    """Simulates placements whose types and shapes have been checked; values are checked here.

    Args:
        tables: the problem under a network model.
        rank: priority of each op, lowest first, or empty. # (num_ops,) or (0,)
        given: whether orders are the priorities.
        levels: whether execution is bulk-synchronous.
        source: problem id of each op where ids are permuted, so that ties break another way; what
            comes in is by problem id all the same. # (num_ops,) or (0,)
    """

    tables: Tables
    rank: np.ndarray
    given: bool
    levels: bool
    source: np.ndarray

    @cached_property
    def memory(self) -> bool:
        """Whether a device could run out of memory.

        Nowhere can more be resident than all outputs at once, so that ample capacities need no
        bookkeeping at all.
        """
        sizes = self.tables.output_bytes
        return len(sizes) > 0 and bool((self.tables.capacity < sizes.sum()).any())

    @cached_property
    def free(self) -> bool:
        """Whether transfers need no events."""
        return len(self.tables.channels) == 0 and not self.memory

    @cached_property
    def fifo(self) -> FifoTables | None:
        """Tables of the pass that needs no events at all, if it applies."""
        if self.given or len(self.rank) or self.levels or self.memory:
            return None
        return fifo_tables(self.tables)

    def makespan(self, devices: np.ndarray, order: np.ndarray, factors: NoiseFactors) -> Any:
        """Simulates one placement.

        Args:
            devices: # (num_ops,)
            order: # (num_ops,) or (0,)
            factors: noise.

        Returns:
            The makespan [s], infinity over capacity, or a negative status (see `kernel`).
        """
        if len(self.source):
            devices, order, factors = self._permuted(devices[None], order[None], factors)
            devices, order = devices[0], order[0]
        if self.fifo is not None:
            makespan = fifo_one(self.fifo, devices, factors.ops, factors.transfers)
            if makespan != NOT_FIFO:
                return makespan
        return self._kernel.simulate_one(
            self.tables, devices, order, self.rank, factors.ops, factors.transfers,
            self.free, self.memory,
        )  # fmt: skip

    def makespans(
        self, placements: np.ndarray, orders: np.ndarray, factors: NoiseFactors, out: np.ndarray
    ) -> None:
        """Simulates placements # (batch, num_ops); results as in `makespan` go to `out`."""
        if len(self.source):
            placements, orders, factors = self._permuted(placements, orders, factors)
        if self.fifo is not None:
            fifo_batch(self.fifo, placements, factors.ops, factors.transfers, out)
            if not (out == NOT_FIFO).any():
                return
        self._kernel.simulate_batch(
            self.tables, placements, orders, self.rank, factors.ops, factors.transfers,
            self.free, out,
        )  # fmt: skip

    def trace(
        self, devices: np.ndarray, order: np.ndarray, factors: NoiseFactors
    ) -> tuple[float, Scratch, TransferScratch]:
        """Simulates one placement, hop by hop; also returns what tells what happened."""
        memory = len(self.tables.output_bytes) > 0
        traced: tuple[float, Scratch, TransferScratch] = self._kernel.simulate_trace(
            self.tables, devices, order, self.rank, factors.ops, factors.transfers, memory
        )
        return traced

    def permuted(self, source: np.ndarray) -> Engine:
        """The same problem with ids `0, 1, ...` given to `source[0], source[1], ...`."""
        number = np.empty(len(source), np.int32)
        number[source] = np.arange(len(source), dtype=np.int32)
        tables = self.tables
        succ_ptr, succ_ops = permuted_rows(tables.succ_ptr, tables.succ_ops, source, number)
        pred_ptr, pred_ops = permuted_rows(tables.pred_ptr, tables.pred_ops, source, number)
        known = len(tables.output_bytes) > 0
        return Engine(
            tables._replace(
                succ_ptr=succ_ptr,
                succ_ops=succ_ops,
                pred_ptr=pred_ptr,
                pred_ops=pred_ops,
                op_seconds=tables.op_seconds[source],
                transfer_volume=tables.transfer_volume[source],
                output_bytes=tables.output_bytes[source] if known else tables.output_bytes,
                input_ops=np.sort(number[tables.input_ops]),
            ),
            self.rank[source] if len(self.rank) else self.rank,
            self.given,
            self.levels,
            source,
        )

    def _permuted(
        self, placements: np.ndarray, orders: np.ndarray, factors: NoiseFactors
    ) -> tuple[np.ndarray, np.ndarray, NoiseFactors]:
        if self.given:
            number = np.argsort(self.source)
            orders = number[np.clip(orders, 0, len(number) - 1)]
        if len(factors.ops):
            factors = NoiseFactors(factors.ops[self.source], factors.transfers[self.source])
        return np.ascontiguousarray(placements[:, self.source]), orders, factors

    @property
    def _kernel(self) -> Any:
        """The module that simulates; not kept as an attribute, because modules do not pickle."""
        return bulk_synchronous if self.levels else kernel


@dataclass(frozen=True)
class Sample:
    """One way in which the same placements may turn out.

    Args:
        engine: breaks ties its own way.
        noise_seed: of the noise model's draw.
    """

    engine: Engine
    noise_seed: int


def replication_seeds(noise_seed: int, replications: int) -> list[int]:
    """Noise seeds of independent replications; a prefix of those of more replications.

    Raises:
        ConfigurationError: if `replications` is not a whole number of at least 1, or the seed of
            at least 0.
    """
    whole_number(noise_seed, "noise_seed", 0)
    sequences = [
        np.random.SeedSequence((noise_seed, r))
        for r in range(whole_number(replications, "replications", 1))
    ]
    return [int(sequence.generate_state(1, np.uint64)[0] >> 1) for sequence in sequences]


def sampled_makespans(
    samples: Sequence[Sample],
    placements: np.ndarray,
    orders: np.ndarray,
    draw: Callable[[int], NoiseFactors],
    num_threads: int | None,
) -> np.ndarray:
    """Simulates every placement in every sample, in parallel over cores.

    Args:
        samples: # (S,)
        placements: # (batch, num_ops)
        orders: # (batch, num_ops) or (batch, 0)
        draw: noise of a seed.
        num_threads: most threads to use, all available cores where None.

    Returns:
        As `Engine.makespan`. # (S, batch)
    """
    batch = len(placements)
    out = np.empty((len(samples), batch))

    def simulate(first: int, last: int) -> None:
        while first < last:
            sample, row = divmod(first, batch)
            stop = min(batch, row + last - first)
            this = samples[sample]
            this.engine.makespans(
                placements[row:stop], orders[row:stop], draw(this.noise_seed), out[sample, row:stop]
            )
            first += stop - row

    tables = samples[0].engine.tables
    work = len(tables.transfer_volume) + len(tables.succ_ops)
    map_chunks(simulate, len(samples) * batch, work, num_threads)
    return out
