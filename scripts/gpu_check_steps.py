"""The steps of scripts/gpu_check.py: each prints what it finds, and raises on failure.

What is printed before a time limit ends a step is kept, so the most telling comes first.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from doppler import Placement, PlacementProblem
from doppler.errors import DopplerError
from doppler.executor import CpuExecutor, Executor, Measurement, Profile, calibrate
from doppler.executor.calibration.contention import predict
from doppler.executor.cuda.executor import CudaExecutor
from doppler.executor.synthetic import empty_workload
from doppler.hardware import make_topology
from doppler.schedule import Schedule
from doppler.schedulers import make_scheduler
from doppler.simulator import Simulator
from doppler.viz import write_trace
from doppler.workloads import Workload, make_workload
from scripts.bench_executor import LEAST_MAKESPAN, idle_share
from scripts.fidelity import fidelity

TESTS = Path(__file__).resolve().parents[1] / "tests" / "executor"
_LLAMA = {"batch": 4, "sequence": 2048, "hidden": 2048, "feed_forward": 5632, "heads": 16}
_SMALL_LLAMA = {"batch": 2, "sequence": 16, "hidden": 32, "feed_forward": 64, "heads": 4}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    # Ops of 0.1 ms and more in float32 on a card of 50 TFLOP/s, and inputs that are made quickly.
    "cuda": {
        "chainmm": {"block": 4096},
        "ffnn": {"batch": 4096, "features": 4096, "hidden": 16384, "classes": 4096},
        "llama_block": _LLAMA,
        "llama_layer": _LLAMA,
    },
    "cpu": {
        "chainmm": {"block": 32, "num_shards": 4},
        "ffnn": {"batch": 32, "features": 32, "hidden": 64, "classes": 32, "num_shards": 4},
        "llama_block": {**_SMALL_LLAMA, "num_shards": 4},
        "llama_layer": {**_SMALL_LLAMA, "num_shards": 4},
    },
}
"""Sizes of the workloads by backend; those of "cpu" only let tests run the steps."""

SCHEDULERS = ("single_device", "round_robin", "critical_path", "heft", "etf")
PROFILE, TRACE = "profile.json", "trace.json"
EMPTY_OPS = 1000


class CheckError(DopplerError):
    """A step found something that is wrong."""


@dataclass(frozen=True)
class Settings:
    """What is checked.

    Args:
        backend: "cuda", or "cpu" in tests.
        devices: how many devices.
        folder: where steps leave files for one another.
        placements: per workload, whose fidelity is measured.
        repeats: measured runs of each.
        seed: of random placements.
    """

    backend: str
    devices: int
    folder: Path
    placements: int = 12
    repeats: int = 7
    seed: int = 0

    def executor(self, workload: Any, **options: Any) -> Executor:
        """Devices of the backend; options that CPU devices do not have are left out for them."""
        if self.backend == "cuda":
            return CudaExecutor(workload, self.devices, **options)
        options = {key: value for key, value in options.items() if key == "problem"}
        return CpuExecutor(workload, self.devices, **options)

    def workloads(self) -> Iterator[Workload]:
        """All workloads, as large as the backend's."""
        for name, sizes in SIZES[self.backend].items():
            yield make_workload(name, **sizes)


def show_environment(settings: Settings) -> None:
    """What the devices are, and which copies between them work."""
    with settings.executor(empty_workload(settings.devices, settings.devices)) as executor:
        executor.run(np.arange(settings.devices))
        for key, value in executor.environment().items():
            print(f"{key}: {value}")
    if settings.backend == "cuda":
        import torch

        for card in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(card)
            print(f"card {card}: {free / 2**30:.1f} of {total / 2**30:.1f} GiB free")


def check_results(settings: Settings) -> None:
    """Whether every workload computes the same as unsharded, however placed and copied.

    Raises:
        CheckError: naming the workloads that do not.
    """
    wrong = []
    rng = np.random.default_rng(settings.seed)
    for name, sizes in SIZES[settings.backend].items():
        # The CPU computes what is compared with: no larger than it likes.
        workload = make_workload(name, **(sizes if settings.backend == "cpu" else {}))
        num_ops = workload.graph.num_ops
        for label, options in (
            ("queues of 2", {}),
            ("queues of 1", {"depth": 1}),
            ("over the host", {"problem": _staged(workload, settings.devices)}),
        ):
            with settings.executor(workload, **options) as executor:
                check = executor.check(rng.integers(0, settings.devices, num_ops))
            verdict = "right" if check.passed else "WRONG"
            print(
                f"{workload.name}, {label}: {verdict}, largest relative error "
                f"{check.max_relative_error:.2e} of {check.tolerance:.0e} allowed ({check.worst})",
                flush=True,
            )
            if not check.passed:
                wrong.append(f"{workload.name}, {label}")
    if wrong:
        raise CheckError(f"wrong results: {'; '.join(wrong)}")


def run_marked_tests(settings: Settings) -> None:
    """The tests that need a GPU.

    Raises:
        CheckError: one of them fails.
    """
    if settings.backend != "cuda":
        print("none for this backend")
        return
    command = [sys.executable, "-m", "pytest", "-m", "cuda", "-p", "no:cacheprovider"]
    ended = subprocess.run([*command, str(TESTS)], check=False)
    if ended.returncode != 0:
        raise CheckError(f"pytest ended with status {ended.returncode}")


def _staged(workload: Workload, num_devices: int) -> PlacementProblem:
    return workload.problem(make_topology("host_staged", num_devices))


def time_dispatch(settings: Settings) -> None:
    """Host time per op when kernels do nothing."""
    workload = empty_workload(EMPTY_OPS, num_chains=settings.devices)
    chains = np.arange(EMPTY_OPS) % settings.devices
    for depth in (1, 2, 4) if settings.backend == "cuda" else (2,):
        with settings.executor(workload, depth=depth) as executor:
            (measured,) = executor.measure([chains], repeats=5, warmup=2)
        print(
            f"empty kernels, {settings.devices} devices, queues of {depth}: "
            f"{1e6 * measured.median / EMPTY_OPS:.1f} us per op",
            flush=True,
        )


def calibrate_devices(settings: Settings) -> None:
    """Times kernels, dispatch and copies; leaves a profile for the steps after it."""
    profile = calibrate(
        list(settings.workloads()),
        settings.devices,
        repeats=5,
        warmup=2,
        seed=settings.seed,
        backend=settings.backend,
    )
    profile.save(settings.folder / PROFILE)
    print(f"{len(profile.kernels)} kernels of {', '.join(profile.workloads)}")
    print(f"from the end of an op to the start of the next: {1e6 * profile.dispatch_gap:.1f} us")
    print(f"device time per empty kernel: {1e6 * profile.dispatch_empty:.1f} us")
    slowdown = np.array([t.busy / t.alone for t in profile.kernels.values() if t.alone > 0])
    if slowdown.size:
        print(f"busy devices slow kernels by {np.median(slowdown):.2f} (median), "
              f"{slowdown.max():.2f} at most")  # fmt: skip
    if profile.copies is not None:
        print(f"copies: {1e6 * profile.copies.latency_alone:.1f} us alone, "
              f"{1e6 * profile.copies.latency:.1f} us while devices work, "
              f"{profile.copies.bandwidth / 1e9:.2f} GB/s")  # fmt: skip
        for size, seconds in profile.copies.sweep:
            print(f"  {size} B from producer to consumer: {1e6 * seconds:.1f} us")


def compare_with_simulation(settings: Settings) -> None:
    """How far simulated makespans are from measured ones, over some placements."""
    profile = _load_profile(settings)
    for workload in settings.workloads():
        problem = _calibrated(profile, workload)
        found = choose_placements(problem, settings.placements, settings.seed)
        with settings.executor(workload, problem=problem) as executor:
            measurements = executor.measure(
                list(found.values()), repeats=settings.repeats, warmup=2
            )
        simulated = np.array(
            [predict(profile, workload, problem, each).makespan for each in found.values()]
        )
        measured = np.array([each.median for each in measurements])
        agreement = fidelity(simulated, measured)
        print(
            f"{workload.name}, {len(found)} placements: MAPE {agreement.mape:.1%}, bias "
            f"{agreement.bias:+.1%}, tau {agreement.tau:.2f}, rho {agreement.rho:.2f}, top-1 "
            f"regret {agreement.regret:.1%}",
            flush=True,
        )
        for (label, _), seconds, each in zip(found.items(), simulated, measurements, strict=True):
            print(f"  {label}: simulated {1e3 * seconds:.2f} ms, measured {each}")
        _say_idling(measurements)


def _say_idling(measurements: list[Measurement]) -> None:
    """How long devices idle beside eligible ops, in the fastest placement."""
    best = min(measurements, key=lambda each: each.median).schedule
    short = "" if best.makespan >= LEAST_MAKESPAN else ", of a short run"
    print(
        f"  idle beside eligible ops: {idle_share(best):.1%} of all device time{short}", flush=True
    )


def choose_placements(problem: PlacementProblem, count: int, seed: int) -> dict[str, Placement]:
    """Placements by label: of some schedulers, the rest random."""
    rng = np.random.default_rng(seed)
    simulator = Simulator(problem)
    found = {
        name: make_scheduler(name).schedule(problem, simulator, rng)
        for name in SCHEDULERS[: max(1, count - 1)]
    }
    for number in range(count - len(found)):
        devices = rng.integers(0, problem.num_devices, problem.num_ops)
        found[f"random {number}"] = Placement(devices)
    return found


def write_perfetto_trace(settings: Settings) -> None:
    """A measured run beside its simulation, in one file for https://ui.perfetto.dev."""
    profile = _load_profile(settings)
    workload = make_workload("ffnn", **SIZES[settings.backend]["ffnn"])
    problem = _calibrated(profile, workload)
    placement = choose_placements(problem, 4, settings.seed)["critical_path"]
    with settings.executor(workload, problem=problem) as executor:
        (measured,) = executor.measure([placement], repeats=5, warmup=2)
        title = _title(measured)
    simulated = predict(profile, workload, problem, placement)
    rows: list[tuple[str, Schedule]] = [(title, measured.schedule), ("simulated", simulated)]
    write_trace(rows, settings.folder / TRACE)
    print(
        f"{workload.name} by critical_path: measured {measured}, simulated "
        f"{1e3 * simulated.makespan:.2f} ms"
    )


def _title(measured: Measurement) -> str:
    logical = measured.environment.get("logical_devices", False)
    return "measured, logical devices" if logical else "measured"


def _calibrated(profile: Profile, workload: Workload) -> PlacementProblem:
    topology = profile.topology()
    return workload.problem(topology, profile.cost_model(workload, topology))


def _load_profile(settings: Settings) -> Profile:
    path = settings.folder / PROFILE
    if not path.exists():
        raise CheckError("the step calibration left no profile, which this step needs")
    return Profile.load(path)


@dataclass(frozen=True)
class Step:
    """A step: what it is called and does, and how long it may take.

    Args:
        title: of its part of the report.
        run: does it.
        share: of all the time that there is.
    """

    title: str
    run: Callable[[Settings], None]
    share: float


STEPS: dict[str, Step] = {
    "environment": Step("Devices", show_environment, 0.15),
    "results": Step("Results against the unsharded computation", check_results, 0.25),
    "tests": Step("Tests that need a GPU", run_marked_tests, 0.25),
    "dispatch": Step("Dispatch", time_dispatch, 0.15),
    "calibration": Step("Calibration", calibrate_devices, 0.35),
    "fidelity": Step("Simulated against measured", compare_with_simulation, 0.35),
    "trace": Step("Perfetto trace", write_perfetto_trace, 0.15),
}
"""In their order. The shares add up to more than 1: no step needs all of its own, and what
there is at the end goes to whoever comes last."""
