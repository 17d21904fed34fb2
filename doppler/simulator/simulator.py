"""The simulator: seconds and schedules of placements, by the compiled kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from doppler.checks import whole_number, whole_numbers
from doppler.errors import CapacityError, ConfigurationError, InvalidPlacementError
from doppler.graph import b_levels
from doppler.problem import PlacementProblem
from doppler.schedule import Placement, Schedule
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator.engine import Engine, Sample, replication_seeds, sampled_makespans
from doppler.simulator.noise import MOST_FACTOR, NO_NOISE, NoiseFactors, NoiseModel
from doppler.simulator.ops import BAD_PLACEMENT
from doppler.simulator.robustness import Robustness, tie_samples
from doppler.simulator.tables import Scratch, TransferScratch, make_tables

CHOOSE_RULES = ("fifo", "b_level", "random", "given")
"""Names of the choose-task rules."""

_NO_ORDER = np.empty(0, np.int64)
_NAMED_TENSORS = 3


class Simulator:
    """Runs placements of one problem under the executor semantics.

    A call allocates its own working space, so that one simulator serves several threads at once;
    it can be pickled. Results are pure functions of the arguments.

    Args:
        problem: what is placed.
        network: one of `NETWORKS`.
        choose: one of `CHOOSE_RULES`: who goes first among eligible tasks.
        noise: factors on durations, drawn from the `noise_seed` of a call; None for none.
        seed: of the priorities under `random`.
        num_threads: most threads that `makespans` uses; all available cores where None.
        execution: one of `EXECUTIONS`; see `doppler.simulator.bulk_synchronous`.

    Raises:
        InvalidProblemError: inputs that are no ops yet (`PlacementProblem.with_explicit_inputs`).
        ConfigurationError: an unknown name, or a wrong noise, seed or thread count.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        network: str = "serial_links",
        choose: str = "fifo",
        noise: NoiseModel | None = None,
        seed: int = 0,
        num_threads: int | None = None,
        execution: str = "work_conserving",
    ) -> None:
        problem.check_explicit()
        self._constrained = problem.constrained
        self.problem = problem
        self.network = network
        self.choose = choose
        self.noise = noise
        self.num_threads = num_threads
        if num_threads is not None:
            self.num_threads = whole_number(num_threads, "num_threads", 1)
        rank = choose_ranks(problem, choose, seed)
        if noise is not None and not isinstance(noise, NoiseModel):
            raise ConfigurationError(f"noise is {noise!r}, not a NoiseModel or None")
        if execution not in EXECUTIONS:
            raise ConfigurationError(
                f"execution {execution!r} is unknown; known: {', '.join(EXECUTIONS)}"
            )
        self.execution = execution
        self._factors: tuple[int, NoiseFactors] | None = None
        self._shape = (problem.num_ops,)
        self.engine = Engine(
            make_tables(problem, network),
            rank,
            given=choose == "given",
            levels=execution == "bulk_synchronous",
            source=_NO_ORDER,
        )

    def makespan(self, devices: Any, order: Any = None, noise_seed: int = 0) -> float:
        """Simulates one placement.

        Args:
            devices: a device per op, or a `Placement` (whose order then counts). # (num_ops,)
            order: op ids, most urgent first; used and needed under `given`. # (num_ops,)
            noise_seed: of the noise model's draw.

        Returns:
            The simulated makespan, infinity where a device would run out of memory. [s]

        Raises:
            InvalidPlacementError: a placement or order that does not fit the problem.
        """
        devices, order = self._inputs(devices, order)
        factors = self.factors(noise_seed)
        makespan = self.engine.makespan(devices, order, factors)
        if makespan < 0:
            self._refuse(makespan, devices, order)
        return makespan

    def makespans(
        self,
        placements: Any,
        orders: Any = None,
        noise_seed: int = 0,
        replications: int | None = None,
    ) -> np.ndarray:
        """Simulates many placements, in parallel over cores; equal to calls of `makespan`.

        Args:
            placements: a device per op, or a sequence of `Placement`. # (batch, num_ops)
            orders: used and needed under `given`. # (batch, num_ops)
            noise_seed: of the noise model's draw, the same for all rows.
            replications: how many noise draws R, with the seeds
                `replication_seeds(noise_seed, R)`; None for the one of `noise_seed` itself.

        Returns:
            Simulated makespans, infinity where a device would run out of memory. # (batch,) [s], or
            with replications # (batch, R) [s]

        Raises:
            InvalidPlacementError: naming the row and the op.
            ConfigurationError: if `replications` is not a whole number of at least 1.
        """
        if replications is None:
            return self.sample([Sample(self.engine, noise_seed)], placements, orders)[0]
        seeds = replication_seeds(noise_seed, replications)
        seconds = self.sample([Sample(self.engine, seed) for seed in seeds], placements, orders)
        return np.ascontiguousarray(seconds.T)

    def sample(
        self, samples: Sequence[Sample], placements: Any, orders: Any = None, noisy: bool = True
    ) -> np.ndarray:
        """Simulates all placements in all samples, with noise if `noisy` and there is any.

        Other arguments and errors are those of `makespans`.

        Returns:
            Simulated makespans. # (S, batch) [s]
        """
        placements, orders = self._batch_inputs(placements, orders)
        draw = self.factors if noisy else _no_noise
        seconds = sampled_makespans(samples, placements, orders, draw, self.num_threads)
        for row in np.flatnonzero((seconds < 0).any(axis=0)):
            self._refuse(seconds[:, row].min(), placements[row], orders[row], f"row {row}")
        return seconds

    def robust(
        self, placement: Any, order: Any = None, samples: int = 64, seed: int = 0
    ) -> Robustness:
        """Simulates one placement with ties broken at random and, if the simulator has any, noise.

        Every sample has its own random permutation of the ops that replaces their ids in all ties,
        and its own noise draw. Priorities are not touched: `choose=random` and `given` leave few
        ties to break.

        Args:
            placement: a device per op, or a `Placement` (whose order then counts). # (num_ops,)
            order: used and needed under `given`. # (num_ops,)
            samples: how many.
            seed: of the permutations and the noise.

        Raises:
            InvalidPlacementError: a placement or order that does not fit the problem.
            ConfigurationError: if `samples` is not a whole number of at least 1.
        """
        devices, order = self._inputs(placement, order)
        chance = tie_samples(self, samples, seed)
        call = ([devices], [order] if len(order) else None)
        seconds = self.sample(chance, *call)[:, 0]
        quiet = seconds if self.noise is None else self.sample(chance, *call, noisy=False)[:, 0]
        nominal = self.sample([Sample(self.engine, 0)], *call, noisy=False)[0, 0]
        return Robustness(seconds, float(nominal), quiet)

    def run(self, devices: Any, order: Any = None, noise_seed: int = 0) -> Schedule:
        """Simulates one placement and returns who ran where and when.

        Args: as in `makespan`.

        Raises:
            InvalidPlacementError: a placement or order that does not fit the problem.
            CapacityError: naming device, time and the largest resident tensors.
        """
        devices, order = self._inputs(devices, order)
        factors = self.factors(noise_seed)
        memory = self.problem.graph.output_bytes is not None
        makespan, w, x = self.engine.trace(devices, order, factors)
        if makespan < 0:
            self._refuse(makespan, devices, order)
        if makespan == np.inf:
            raise self._capacity_error(devices, w, x)
        return self._schedule(devices, order, w, x, memory)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_factors": None}

    def _inputs(self, devices: Any, order: Any) -> tuple[np.ndarray, np.ndarray]:
        """Converts the arguments of a call; the kernel checks the ranges of what is well-formed."""
        if isinstance(devices, Placement):
            order = devices.order if order is None else order
            devices = devices.devices.copy()  # theirs are read-only, which kernels do not take
        if self._constrained or not self._well_formed(devices):
            devices = self.problem.check_placement(devices)
        if self.choose != "given":
            return devices, _NO_ORDER
        if order is None:
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}: choose=given needs an order of the ops"
            )
        return devices, order if self._well_formed(order) else self.problem.check_order(order)

    def _well_formed(self, values: Any) -> bool:
        return (
            type(values) is np.ndarray
            and values.dtype == np.int64
            and values.shape == self._shape
            and values.flags.c_contiguous
            and values.flags.writeable
        )

    def _batch_inputs(self, placements: Any, orders: Any) -> tuple[np.ndarray, np.ndarray]:
        """Converts the arguments of a batch; the kernel checks the ranges."""
        if isinstance(placements, (list, tuple)) and any(
            isinstance(placement, Placement) for placement in placements
        ):
            if orders is None and all(
                isinstance(placement, Placement) and placement.order is not None
                for placement in placements
            ):
                orders = [placement.order for placement in placements]
            placements = [
                placement.devices if isinstance(placement, Placement) else placement
                for placement in placements
            ]
        devices = self._batch_ints(placements, "placements")
        if self._constrained:
            broken = self.problem.constraints.first_violation(devices)
            if broken is not None:
                self._refuse(BAD_PLACEMENT, devices[broken[0]], _NO_ORDER, f"row {broken[0]}")
        if self.choose != "given":
            return devices, np.empty((len(devices), 0), np.int64)
        if orders is None and len(devices):
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}: choose=given needs an order of the ops for every "
                "placement"
            )
        checked = self._batch_ints([] if orders is None else orders, "orders")
        if len(checked) != len(devices):
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}: {len(checked)} orders for {len(devices)} "
                "placements"
            )
        return devices, checked

    def _batch_ints(self, values: Any, label: str) -> np.ndarray:
        where = f"problem {self.problem.name!r}, {label}"
        plain = isinstance(values, np.ndarray) and values.dtype == np.int64
        array = np.require(values if plain else whole_numbers(values, where), None, ["C", "W"])
        if array.size == 0 and array.ndim < 2:
            return np.empty((0, *self._shape), np.int64)
        if array.ndim != 2 or array.shape[1:] != self._shape:
            raise InvalidPlacementError(
                f"{where}: shape {array.shape}, expected (batch, {self.problem.num_ops})"
            )
        return array

    def _refuse(
        self, status: float, devices: np.ndarray, order: np.ndarray, where: str = ""
    ) -> None:
        """Raises the error that a checked call would have raised, with the row in front."""
        try:
            if status == BAD_PLACEMENT:
                self.problem.check_placement(devices)
            self.problem.check_order(order)
        except InvalidPlacementError as error:
            if not where:
                raise
            raise InvalidPlacementError(f"{where}: {error}") from None

    def factors(self, noise_seed: int) -> NoiseFactors:
        """Noise of a seed; the latest is kept because searches ask for the same one."""
        if self.noise is None:
            return NO_NOISE
        latest = self._factors
        if latest is None or latest[0] != noise_seed:
            latest = (noise_seed, draw_factors(self.noise, self.problem, noise_seed))
            self._factors = latest
        return latest[1]

    def _capacity_error(self, devices: np.ndarray, w: Scratch, x: TransferScratch) -> CapacityError:
        device, time = int(x.counts[3]), float(x.clock[0])
        at_home = np.flatnonzero(x.home_live & (devices == device))
        count = x.counts[0]
        copies = x.op[:count][x.copy_live[:count] & (x.target[:count] == device)]
        tensors = np.concatenate([at_home, copies])
        return capacity_error(self.problem, device, time, tensors)

    def _schedule(
        self,
        devices: np.ndarray,
        order: np.ndarray,
        w: Scratch,
        x: TransferScratch,
        memory: bool,
    ) -> Schedule:
        count = int(x.counts[0])
        hops = int(x.hop_base[count])
        lengths = np.diff(x.hop_base[: count + 1])
        return Schedule(
            problem=self.problem,
            devices=devices.copy(),
            start=w.start,
            finish=w.finish,
            transfer_ops=np.repeat(x.op[:count], lengths).astype(np.int64),
            transfer_targets=np.repeat(x.target[:count], lengths).astype(np.int64),
            transfer_links=x.hop_link[:hops].astype(np.int64),
            transfer_start=x.hop_start[:hops].copy(),
            transfer_finish=x.hop_finish[:hops].copy(),
            network=self.network,
            choose=self.choose,
            order=order.copy() if len(order) else None,
            origin="simulated",
            peak_bytes=x.peak if memory else None,
            execution=self.execution,
        )


def choose_ranks(problem: PlacementProblem, choose: str, seed: int) -> np.ndarray:
    """Priority of each op, lowest first, where it does not depend on the run. # (num_ops,) or (0,)

    Raises:
        ConfigurationError: if no rule has that name, or the seed is none.
    """
    whole_number(seed, "seed", 0)
    if choose not in CHOOSE_RULES:
        raise ConfigurationError(f"choose {choose!r} is unknown; known: {', '.join(CHOOSE_RULES)}")
    if choose == "b_level":
        return -b_levels(problem.graph, problem.mean_op_seconds, problem.mean_transfer_seconds)
    if choose == "random":
        return np.random.default_rng(seed).random(problem.num_ops)
    return np.empty(0)


def _no_noise(noise_seed: int) -> NoiseFactors:
    return NO_NOISE


def draw_factors(
    noise: NoiseModel | None, problem: PlacementProblem, noise_seed: int
) -> NoiseFactors:
    """The noise of one run, or `NO_NOISE`.

    Raises:
        ConfigurationError: if the model returns factors of a wrong shape, not finite and >= 0, or
            above `MOST_FACTOR`; or if the seed is none.
    """
    if noise is None:
        return NO_NOISE
    noise_seed = whole_number(noise_seed, "noise_seed", 0)
    drawn = noise.draw(problem, np.random.default_rng(noise_seed))
    factors = NoiseFactors(*(np.require(part, np.float64, ["C", "W"]) for part in drawn))
    shapes = ((problem.num_ops,), (problem.num_ops, problem.num_devices))
    for label, part, shape in zip(NoiseFactors._fields, factors, shapes, strict=True):
        if part.shape != shape or not ((part >= 0) & (part <= MOST_FACTOR)).all():
            raise ConfigurationError(
                f"noise {noise!r}, {label}: factors must be finite, >= 0 and at most "
                f"{MOST_FACTOR:g}, of shape {shape}, not {part.shape}"
            )
    return factors


def capacity_error(
    problem: PlacementProblem, device: int, time: float, tensors: np.ndarray
) -> CapacityError:
    """Words the error of a device that is over capacity.

    Args:
        problem: what was run.
        device: where memory ran out.
        time: when. [s]
        tensors: ops whose outputs are resident there.
    """
    graph = problem.graph
    sizes = graph.require("output_bytes")[tensors]
    largest = np.lexsort((tensors, -sizes))[:_NAMED_TENSORS]
    named = ", ".join(
        f"op {tensors[i]} ({graph.op_name(tensors[i])}) {sizes[i]:.4g} B" for i in largest
    )
    target = problem.topology.devices[device]
    return CapacityError(
        f"problem {problem.name!r}: device {device} ({target.name}) holds {sizes.sum():.6g} B at "
        f"{time:.6g} s, over its capacity of {target.memory_bytes:.6g} B; largest resident "
        f"outputs: {named}; move some of their ops to other devices"
    )
