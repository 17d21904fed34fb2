"""Calibration: measures kernels, dispatch and copies on these devices and writes them down.

Kernels are timed where they will run: inside whole runs of the workload on the executor. So their
operands are where a run leaves them (just written by another op, arrived from another device, or
long out of the caches), all other devices are at work, and link threads copy in between, which
timing a kernel on its own in a loop would all miss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from doppler.checks import whole_number
from doppler.errors import ConfigurationError
from doppler.executor.base import Executable, Executor, Progress
from doppler.executor.calibration.profile import Profile
from doppler.executor.calibration.regression import kernel_sizes
from doppler.executor.calibration.timings import MOST_FACTORS, CopyTiming, KernelTiming
from doppler.executor.calibration.traces import (
    dispatch_gaps,
    others_at_work,
    transfer_delays,
    transfers_at_work,
)
from doppler.executor.cpu.executor import CpuExecutor
from doppler.executor.cuda.executor import CudaExecutor
from doppler.executor.synthetic import empty_workload, relay_workload
from doppler.schedule import Schedule

EMPTY_OPS = 1000
RELAY_HOPS = 24
RELAY_SIZES = tuple(1 << power for power in range(12, 25, 2))
"""Sizes of the copy sweep, 4 KiB to 16 MiB. [B]"""

_BACKENDS: dict[str, type[Executor]] = {"cpu": CpuExecutor, "cuda": CudaExecutor}


@dataclass
class _Samples:
    """What the runs of all workloads have shown so far."""

    alone: dict[str, list[float]] = field(default_factory=dict)  # by kernel signature [s]
    busy: dict[str, list[float]] = field(default_factory=dict)
    shares: dict[str, list[float]] = field(default_factory=dict)  # of others at work while busy
    transfers: dict[str, list[float]] = field(default_factory=dict)  # under way while busy
    sizes: dict[str, tuple[float, float] | None] = field(default_factory=dict)  # [FLOP], [B]
    gaps: list[float] = field(default_factory=list)  # [s]
    gaps_alone: list[float] = field(default_factory=list)  # [s]
    transfer_bytes: list[float] = field(default_factory=list)
    transfer_delays: list[float] = field(default_factory=list)  # [s]


def calibrate(
    workload: Executable | Sequence[Executable],
    num_devices: int,
    repeats: int = 10,
    warmup: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
    backend: str = "cpu",
) -> Profile:
    """Measures what ops and transfers of workloads cost on this machine.

    Per workload: `repeats` runs on one device while the others idle, and `repeats` runs of random
    placements that keep all devices at work. Then empty kernels for the overhead of
    dispatch, and a sweep of copies by size, fitted by Theil-Sen regression.

    Args:
        workload: one or several.
        num_devices: devices at work; the profile holds for this number only.
        repeats: measured runs of either kind.
        warmup: runs of either kind before them; in the first few, fresh pages make large outputs
            up to a fifth slower than ever after.
        seed: of the random placements.
        progress: called with (steps done, steps in all).
        backend: which executor.

    Raises:
        ConfigurationError: an impossible number, no workload, or an unknown backend.
        ExecutionError: a kernel failed.
    """
    workloads = list(workload) if isinstance(workload, Sequence) else [workload]
    if not workloads:
        raise ConfigurationError("there is no workload to calibrate with")
    num_devices = whole_number(num_devices, "num_devices", 1)
    repeats = whole_number(repeats, "repeats", 1)
    warmup = whole_number(warmup, "warmup", 0)
    if backend not in _BACKENDS:
        raise ConfigurationError(
            f"backend {backend!r} cannot be calibrated; known: {', '.join(_BACKENDS)}"
        )
    executor_type = _BACKENDS[backend]
    sizes = RELAY_SIZES if num_devices > 1 else ()
    step = _Steps((2 * (warmup + repeats)) * len(workloads) + 1 + len(sizes), progress)
    environment: dict[str, Any] = {}
    rng = np.random.default_rng(seed)
    samples = _Samples()
    for one in workloads:
        with executor_type(one, num_devices) as executor:
            environment = environment or executor.environment()
            sampler = WorkloadSampler(executor, rng)
            for number in range(warmup + repeats):
                for run in (sampler.run_alone, sampler.run_busy):
                    run(keep=number >= warmup)
                    step()
            sampler.add_to(samples)
    dispatch_empty = _time_empty_kernels(executor_type, num_devices)
    step()
    sweep = []
    for size in sizes:
        sweep.append((size, _time_relay(executor_type, size)))
        step()
    info = {"repeats": repeats, "warmup": warmup, "seed": seed}
    names = tuple(one.name for one in workloads)
    return _profile(names, environment, samples, dispatch_empty, sweep, info)


def resampled(profile: Profile, samplers: Sequence[WorkloadSampler]) -> Profile:
    """A profile of the samplers' runs, at least one of either kind each.

    Args:
        profile: of the same devices; its sweep of copies and its overhead of dispatch are kept.
        samplers: one per workload.
    """
    samples = _Samples()
    for sampler in samplers:
        sampler.add_to(samples)
    return _profile(
        tuple(sampler.executor.workload.name for sampler in samplers),
        dict(profile.environment),
        samples,
        profile.dispatch_empty,
        [] if profile.copies is None else list(profile.copies.sweep),
        {"repeats": min(len(sampler.busy) for sampler in samplers)},
    )


def _profile(
    workloads: tuple[str, ...],
    environment: dict[str, Any],
    samples: _Samples,
    dispatch_empty: float,
    sweep: list[tuple[int, float]],
    info: dict[str, Any],
) -> Profile:
    profile = Profile(
        workloads=workloads,
        environment=environment,
        kernels={name: _timing(samples, name) for name in sorted(samples.busy)},
        dispatch_gap=float(np.mean(samples.gaps)) if samples.gaps else dispatch_empty,
        dispatch_empty=dispatch_empty,
        copies=_fit_copies(sweep, samples) if sweep else None,
        info=info,
        dispatch_gap_alone=float(np.mean(samples.gaps_alone)) if samples.gaps_alone else None,
    )
    return replace(profile, info={**info, "regression": _describe_regression(profile)})


def _describe_regression(profile: Profile) -> dict[str, float | int] | None:
    """What kernels that were not measured would be estimated from, None where they cannot be."""
    regression = profile.regression
    if regression is None:
        return None
    return {"kernels": regression.signatures, "median_relative_error": round(regression.error, 4)}


class _Steps:
    """Counts steps and reports them."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._done = 0
        self._total = total
        self._progress = progress

    def __call__(self) -> None:
        self._done += 1
        if self._progress is not None:
            self._progress(self._done, self._total)


class WorkloadSampler:
    """Runs of one workload on one device, and spread at random over all of them, alternately.

    Runs may be made at any time, so that a calibration can share the machine's moods with whatever
    it shall explain; see `resampled`.

    Args:
        executor: of the workload.
        rng: of the placements.
    """

    def __init__(self, executor: Executor, rng: np.random.Generator) -> None:
        self.executor = executor
        self.alone: list[Schedule] = []
        self.busy: list[Schedule] = []
        self._rng = rng

    def run_alone(self, keep: bool = True) -> None:
        """A run on one device; one that is not kept warms up."""
        num_ops = self.executor.workload.graph.num_ops
        schedule = self.executor.run(np.zeros(num_ops, np.int64))
        self.alone += [schedule] * keep

    def run_busy(self, keep: bool = True) -> None:
        """A run on all devices."""
        num_ops, num_devices = self.executor.workload.graph.num_ops, self.executor.num_devices
        # Dealt, not drawn: every device gets its share of the ops, so that none idles for long.
        schedule = self.executor.run(self._rng.permutation(num_ops) % num_devices)
        self.busy += [schedule] * keep

    def add_to(self, samples: _Samples) -> None:
        """Adds what the runs have shown."""
        workload = self.executor.workload
        samples.sizes |= kernel_sizes(workload)
        for schedule in _middle_half(self.alone):
            _add(samples.alone, workload, schedule.finish - schedule.start)
            samples.gaps_alone += dispatch_gaps(schedule).tolist()
        for schedule in _middle_half(self.busy):
            _add(samples.busy, workload, schedule.finish - schedule.start)
            _add(samples.shares, workload, others_at_work(schedule))
            _add(samples.transfers, workload, transfers_at_work(schedule))
            samples.gaps += dispatch_gaps(schedule).tolist()
            sizes, seconds = transfer_delays(schedule)
            samples.transfer_bytes += sizes.tolist()
            samples.transfer_delays += seconds.tolist()


def _middle_half(schedules: list[Schedule]) -> list[Schedule]:
    """The runs whose ops took neither the most nor the least time in all.

    The makespan that a calibrated simulation should predict is that of the median run. Hiccups are
    part of such a run and belong into the mean of its durations (each op's median would miss them,
    as each meets few), while a run that another process spoilt belongs out as a whole.
    """
    ordered = sorted(
        schedules, key=lambda schedule: float((schedule.finish - schedule.start).sum())
    )
    kept = (len(ordered) + 1) // 2
    first = (len(ordered) - kept) // 2
    return ordered[first : first + kept]


def _add(table: dict[str, list[float]], workload: Executable, values: np.ndarray) -> None:
    """Adds a value per op under its kernel's signature."""
    for kernel, value in zip(workload.kernels, values.tolist(), strict=True):
        table.setdefault(kernel.signature, []).append(value)


def _timing(samples: _Samples, signature: str) -> KernelTiming:
    busy = np.array(samples.busy[signature])
    flops, traffic = samples.sizes.get(signature) or (None, None)
    return KernelTiming(
        busy=float(busy.mean()),
        alone=float(np.mean(samples.alone[signature])),
        variation=float(busy.std() / busy.mean()),
        samples=len(busy),
        factors=_spread(busy),
        share=float(np.mean(samples.shares[signature])),
        transfers=float(np.mean(samples.transfers[signature])),
        flops=flops,
        traffic=traffic,
    )


def _spread(durations: np.ndarray) -> tuple[float, ...]:
    """Durations, or quantiles of them where there are many, over their mean."""
    kept = np.sort(durations)
    if len(kept) > MOST_FACTORS:
        kept = np.quantile(kept, (np.arange(MOST_FACTORS) + 0.5) / MOST_FACTORS)
    return tuple((kept / kept.mean()).tolist())


def _time_empty_kernels(executor_type: type[Executor], num_devices: int) -> float:
    """Device time per op when kernels do nothing: the executor's own overhead. [s]"""
    workload = empty_workload(EMPTY_OPS, num_chains=num_devices)
    with executor_type(workload, num_devices) as executor:
        chains = np.arange(EMPTY_OPS) % num_devices
        (measurement,) = executor.measure([chains], repeats=5, warmup=1)
    return measurement.median * num_devices / EMPTY_OPS


def _time_relay(executor_type: type[Executor], size: int) -> float:
    """From the end of an op to the start of its consumer on another device, all idle. [s]"""
    workload = relay_workload(RELAY_HOPS, size)
    with executor_type(workload, 2) as executor:
        there_and_back = np.arange(RELAY_HOPS + 1) % 2
        executor.run(there_and_back)
        schedules = [executor.run(there_and_back) for _ in range(3)]
    hops = np.concatenate([s.start[1:] - s.finish[:-1] for s in schedules])
    return float(np.median(hops))


def _fit_copies(sweep: list[tuple[int, float]], samples: _Samples) -> CopyTiming:
    """Bandwidth from the sweep; latency once from there and once from the busy runs.

    While devices work, a link thread waits for a CPU and the copy is slower; the mean delay beyond
    bytes / bandwidth in the busy runs is what a transfer really waits.
    """
    from scipy.stats import theilslopes  # takes seconds to import

    sizes, seconds = np.array(sweep).T
    slope, intercept, *_ = theilslopes(seconds, sizes, method="joint")
    # A noisy sweep can fit a slope of 0 or less; the largest copy then bounds the bandwidth.
    slope = slope if slope > 0 else seconds[-1] / sizes[-1]
    waited = np.array(samples.transfer_delays) - slope * np.array(samples.transfer_bytes)
    latency_alone = max(0.0, float(intercept))
    return CopyTiming(
        latency=max(0.0, float(waited.mean())) if len(waited) else latency_alone,
        latency_alone=latency_alone,
        bandwidth=1.0 / float(slope),
        interruption=_fit_interruption(samples),
        sweep=tuple(sweep),
    )


def _fit_interruption(samples: _Samples) -> float:
    """By how much an op takes longer per transfer that is under way, at least 0. [s]

    Least squares over the busy durations of all kernels, less each kernel's mean; that other
    devices work more or less during one run of a kernel than during another is fitted beside it.
    """
    rows, lengths = [], []
    for name, durations in samples.busy.items():
        seconds = np.array(durations)
        shares = np.array(samples.shares[name]) * float(np.mean(samples.alone[name]))
        columns = np.stack([np.array(samples.transfers[name]), shares], axis=1)
        rows.append(columns - columns.mean(axis=0))
        lengths.append(seconds - seconds.mean())
    slopes, *_ = np.linalg.lstsq(np.concatenate(rows), np.concatenate(lengths), rcond=None)
    return max(0.0, float(slopes[0]))
