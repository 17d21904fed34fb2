"""Measures the executor on CPU devices: overhead, two devices against one, idle time, barriers.

python scripts/bench_executor.py
python scripts/bench_executor.py --workloads ffnn --repeats 5 --picture barriers.png

Rows that compare two things measure them in turn, so that a busy moment meets both. On a machine
that does something else too, all of this is slower and its spread tells; the title has the load.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from doppler import Schedule
from doppler.executor import CpuExecutor
from doppler.executor.synthetic import SyntheticKernel, SyntheticWorkload, empty_workload
from doppler.files import write_text_atomically
from doppler.graph import DataflowGraph
from doppler.schedule.schedule import EXECUTIONS
from doppler.schedulers import make_scheduler
from doppler.simulator import Simulator
from doppler.viz import plot_bars
from doppler.workloads import Workload, make_workload
from scripts.bench_simulator import Row, machine, markdown
from scripts.progress import ProgressDisplay

WORKLOADS = ("chainmm", "ffnn", "llama_block", "llama_layer")
WARMUP = 2
EMPTY_OPS = 1000
PARALLEL_OPS, MATRIX_SIZE = 64, 384
"""Independent matrix products that two devices share; some milliseconds each."""
LONGER = {
    "chainmm": {"block": 768},
    "ffnn": {"batch": 2048},
    "llama_block": {"batch": 4},
    "llama_layer": {"batch": 4},
}
"""Sizes with which the host's workloads last some 250 ms."""
LEAST_MAKESPAN = 0.2
"""Idle time counts against its target in runs at least this long. [s]"""
HEADER = ["what", "measured: median [quartiles]", "target", "ratio", "met"]


@dataclass
class Results:
    """What was measured.

    Args:
        rows: of the table.
        panels: makespans for the picture: workload -> placement -> one per execution. [s]
    """

    rows: list[Row] = field(default_factory=list)
    panels: dict[str, dict[str, tuple[float, ...]]] = field(default_factory=dict)


def overhead_rows(repeats: int) -> Iterator[Row]:
    """Device time per op when kernels do nothing."""
    for num_devices, num_chains, label in (
        (1, 1, "one device, one chain"),
        (2, 2, "two devices, a chain each"),
        (2, 1, "two devices, one chain that changes device at every op"),
    ):
        workload = empty_workload(EMPTY_OPS, num_chains)
        with CpuExecutor(workload, num_devices) as executor:
            (measured,) = executor.measure([np.arange(EMPTY_OPS) % num_devices], repeats, WARMUP)
        # Devices with chains of their own work at once; one chain has one op at a time.
        microseconds = measured.makespans * 1e6 * num_chains / EMPTY_OPS
        moving = num_devices > num_chains
        yield Row(
            f"{EMPTY_OPS} empty kernels, {label}: per op" + (" and transfer" if moving else ""),
            microseconds,
            "us",
            None if moving else 60,
        )


def parallel_workload() -> SyntheticWorkload:
    """Independent matrix products."""
    graph = DataflowGraph.from_edges(
        "parallel",
        PARALLEL_OPS,
        [],
        flops=np.full(PARALLEL_OPS, 2.0 * MATRIX_SIZE**3),
        output_bytes=np.full(PARALLEL_OPS, 4.0 * MATRIX_SIZE**2),
    )
    matrix = torch.rand(MATRIX_SIZE, MATRIX_SIZE, generator=torch.Generator().manual_seed(0))
    return SyntheticWorkload(graph, SyntheticKernel("product", lambda operands: matrix @ matrix))


def parallel_rows(repeats: int) -> Iterator[Row]:
    """Two devices against one on ops that have nothing to do with one another."""
    with CpuExecutor(parallel_workload(), 2) as executor:
        one, two = executor.measure(
            [np.zeros(PARALLEL_OPS, np.int64), np.arange(PARALLEL_OPS) % 2], repeats, WARMUP
        )
    ratios = one.makespans / two.makespans
    yield Row("two devices against one, independent products", ratios, "x", 1.8, False)
    data = bytes(20_000_000)
    pool = ThreadPoolExecutor(2)

    def hash_on(threads: int) -> float:
        share = memoryview(data)[: len(data) // threads]
        began = perf_counter()
        list(pool.map(lambda _: sha256(share).digest(), range(threads)))
        return perf_counter() - began

    with pool:
        values = [hash_on(1) / hash_on(2) for _ in range(repeats)]
    yield Row("SHA-256 likewise: what the machine has to give", np.array(values), "x")


def workload_rows(
    name: str, workload: Workload, repeats: int, results: Results, advance: Callable[[], None]
) -> None:
    """Idle time and barriers, of critical-path placements."""
    executors = [CpuExecutor(workload, 2, execution=execution) for execution in EXECUTIONS]
    try:
        placements = [
            make_scheduler("critical_path").schedule(
                executor.problem,
                Simulator(executor.problem, execution=execution),
                np.random.default_rng(0),
            )
            for executor, execution in zip(executors, EXECUTIONS, strict=True)
        ]
        runs: list[list[Schedule]] = [[] for _ in EXECUTIONS]
        for number in range(repeats + WARMUP):
            for index, executor in enumerate(executors):
                schedule = executor.run(placements[index])
                if number >= WARMUP:
                    runs[index].append(schedule)
                advance()
    finally:
        for executor in executors:
            executor.close()
    makespans = [np.array([schedule.makespan for schedule in some]) for some in runs]
    results.rows.append(Row(f"{name}: makespan, work-conserving", makespans[0] * 1e3, "ms"))
    idle = np.array([idle_share(schedule) for schedule in runs[0]])
    long = float(np.median(makespans[0])) >= LEAST_MAKESPAN
    target = 5.0 if long else None
    what = f"{name}: idle while an op was eligible, of the makespan"
    results.rows.append(Row(what, idle * 100, "%", target))
    what = f"{name}: bulk-synchronous over work-conserving makespan"
    results.rows.append(Row(what, makespans[1] / makespans[0], "x"))
    results.panels[name] = {"critical path": tuple(float(np.median(m)) for m in makespans)}


def idle_share(schedule: Schedule) -> float:
    """Slot time during which a device idled though an op could have run there, of all of it."""
    idle = schedule.idle_time()
    total = float(idle.total.sum())
    return float(idle.held_back.sum()) / total if total > 0 else 0.0


def run(names: list[str], repeats: int, display: ProgressDisplay) -> Results:
    """Measures everything."""
    results = Results()
    with display.step("overhead and two devices", 2) as advance:
        results.rows += overhead_rows(repeats)
        advance(1, "")
        results.rows += parallel_rows(repeats)
        advance(2, "")
    for name in names:
        total = (repeats + WARMUP) * len(EXECUTIONS)
        with display.step(name, total) as advance:
            count = iter(range(1, total + 1))
            step = partial(_count, advance, count)
            workload = make_workload(name, scale="host", **LONGER[name])
            workload_rows(name, workload, repeats, results, step)
    return results


def _count(advance: Callable[[int, str], None], count: Iterator[int]) -> None:
    advance(next(count), "")


def main(arguments: list[str] | None = None) -> Results:
    """Measures, prints and returns the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=15, help="of each measurement")
    parser.add_argument("--picture", type=Path, help="bars of both executions (png, pdf, svg)")
    parser.add_argument("--output", type=Path, help="also write the table here, as Markdown")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error("--repeats must be 1 or more")
    console = Console(markup=False)
    results = run(options.workloads, options.repeats, ProgressDisplay(console))
    title = (
        f"CPU executor, medians of {options.repeats} runs; {machine()}, torch {torch.__version__}"
    )
    table = Table(*HEADER, title=title)
    for row in results.rows:
        table.add_row(*row.cells())
    # A pipe has no width: do not fold at the assumed 80 columns.
    wide = console if console.is_terminal else Console(file=console.file, width=150)
    wide.print(table)
    if options.picture is not None and results.panels:
        names = [execution.replace("_", "-") for execution in EXECUTIONS]
        path = plot_bars(results.panels, names, options.picture, "measured on two CPU devices")
        console.print(f"picture: {path}", highlight=False, soft_wrap=True)
    if options.output is not None:
        write_text_atomically(options.output, markdown(title, HEADER, results.rows))
    return results


if __name__ == "__main__":
    main()
