"""Measures the simulator's speed and prints one table: what, how long, target, ratio.

python scripts/bench_simulator.py
python scripts/bench_simulator.py --output simulator_speed.md

The graphs are the published ones where ../shared/data/doppler lies beside the checkout, otherwise
workloads of this repository; placements are random on 4 devices. Every figure is the median of
repeats in this one run, with the quartiles in brackets. One-core figures are processor seconds of
the thread that calls, so that other programs disturb them less; two cores and fresh processes are
timed by the clock and need an idle machine. An *event* is each start and each completion of an op
or of a hop of a transfer.
"""

from __future__ import annotations

import argparse
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, thread_time

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler import CostModel, DataflowGraph, PlacementProblem, load_problem
from doppler.files import write_text_atomically
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.simulator.jit import entry
from doppler.simulator.search import (
    NO_ORDER,
    SearchTables,
    evaluate,
    make_search_scratch,
    search_tables,
)
from doppler.workloads import make_workload

PUBLISHED = Path(__file__).resolve().parents[2] / "shared" / "data" / "doppler"
PUBLISHED_FILES = {
    "FFNN": "gdp_ffnn_192nodes.txt",
    "Llama-block": "gdp_transformer_block_215nodes.txt",
    "Llama-layer": "gdp_full_transformer_layer_261nodes.txt",
}
OWN_WORKLOADS = {"FFNN": "ffnn", "Llama-block": "llama_block", "Llama-layer": "llama_layer"}
NUM_DEVICES = 4
BATCH, CALLS = 1024, 256
"""Many different placements, because the processor learns the branches of few."""
SMALL_OPS, BIG_DEVICES = 10_000, 8


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        what: was measured.
        values: one per repeat.
        unit: of `values` and `target`.
        target: None where there is none.
        at_most: whether the target is an upper bound.
    """

    what: str
    values: np.ndarray
    unit: str
    target: float | None = None
    at_most: bool = True

    def cells(self) -> list[str]:
        low, median, high = np.percentile(self.values, [25, 50, 75])
        measured = f"{median:.4g} {self.unit} [{low:.4g}, {high:.4g}]"
        if self.target is None:
            return [self.what, measured, "", "", ""]
        ratio = self.target / median if self.at_most else median / self.target
        bound = f"{'<=' if self.at_most else '>='} {self.target:g} {self.unit}"
        return [self.what, measured, bound, f"{ratio:.2f}", "yes" if ratio >= 1 else "no"]


@entry
def hill_climb(
    tables: SearchTables, devices: np.ndarray, ops: np.ndarray, targets: np.ndarray
) -> float:
    """Moves one op at a time, keeping what does not hurt; returns the last makespan."""
    scratch = make_search_scratch(tables)
    best = evaluate(tables, devices, NO_ORDER, scratch)
    for i in range(len(ops)):
        before = devices[ops[i]]
        devices[ops[i]] = targets[i]
        seconds = evaluate(tables, devices, NO_ORDER, scratch)
        if seconds <= best:
            best = seconds
        else:
            devices[ops[i]] = before
    return best


def problems() -> tuple[str, dict[str, PlacementProblem]]:
    """The graphs to measure on, and where they come from."""
    if PUBLISHED.is_dir():
        return "published graphs", {
            name: load_problem(PUBLISHED / file, num_devices=NUM_DEVICES)
            for name, file in PUBLISHED_FILES.items()
        }
    topology = make_topology("v100", NUM_DEVICES)
    return "own workloads", {
        name: make_workload(workload, scale="paper").problem(topology)
        for name, workload in OWN_WORKLOADS.items()
    }


def random_dag(num_ops: int, num_edges: int, num_devices: int) -> PlacementProblem:
    """Edges drawn uniformly among ops in order of id, no two alike."""
    rng = np.random.default_rng(0)
    edges = np.empty((0, 2), np.int64)
    while len(edges) < num_edges:
        consumers = rng.integers(1, num_ops, num_edges)
        producers = (rng.random(num_edges) * consumers).astype(np.int64)
        edges = np.unique(np.concatenate([edges, np.stack([producers, consumers], 1)]), axis=0)
    edges = edges[np.sort(rng.permutation(len(edges))[:num_edges])]
    topology = make_topology("v100", num_devices)
    costs = CostModel(
        op_seconds=np.repeat(rng.uniform(1, 10, (num_ops, 1)), num_devices, axis=1),
        transfer_volume=rng.uniform(0.1, 1, num_ops),
        link_latency=np.zeros(topology.num_links),
        link_seconds_per_unit=np.ones(topology.num_links),
        source="random",
    )
    return PlacementProblem(DataflowGraph.from_edges("random", num_ops, edges), topology, costs)


@contextmanager
def one_core() -> Iterator[None]:
    """Keeps this thread on one core, where the system lets us."""
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def seconds_of(
    function: Callable[[], object], repeats: int, clock: Callable[[], float] = thread_time
) -> np.ndarray:
    """Seconds of calls, after one that is not counted. # (repeats,)"""
    function()
    seconds = np.empty(repeats)
    for i in range(repeats):
        began = clock()
        function()
        seconds[i] = clock() - began
    return seconds


def graph_rows(name: str, problem: PlacementProblem, repeats: int) -> Iterator[Row]:
    """A call, a batch, events and the oracle, on one core."""
    rng = np.random.default_rng(0)
    placements = rng.integers(0, NUM_DEVICES, (BATCH, problem.num_ops))
    few = placements[:CALLS]
    for network in ("contention_free", "serial_links"):
        simulator = Simulator(problem, network, num_threads=1)

        def call_all(simulator: Simulator = simulator) -> None:
            for devices in few:
                simulator.makespan(devices)

        def batch(simulator: Simulator = simulator) -> None:
            simulator.makespans(placements)

        call = seconds_of(call_all, repeats) / len(few)
        each = seconds_of(batch, repeats) / BATCH
        label = f"{name}, {network}"
        yield Row(f"{label}: one makespan() call", call * 1e6, "us", 18)
        yield Row(f"{label}: per placement in makespans()", each * 1e6, "us", 8)
        hops = np.mean([len(simulator.run(devices).transfer_ops) for devices in placements])
        events = 2 * (problem.num_ops + hops)
        yield Row(f"{label}: events in makespans()", events / each / 1e6, "M/s", 15, False)
        yield from oracle_rows(label, problem, network, few[:4], float(np.median(call)), each)
        if network == "contention_free":
            yield Row(f"{label}: one-op moves of a compiled search", moves(simulator, few), "M/s")


def oracle_rows(
    label: str,
    problem: PlacementProblem,
    network: str,
    placements: np.ndarray,
    call: float,
    each: np.ndarray,
) -> Iterator[Row]:
    """How many times faster than the oracle on the same cases."""
    try:
        import simpy  # noqa: F401
    except ImportError:
        return
    from doppler.simulator.oracle import OracleSimulator

    oracle = OracleSimulator(problem, network)
    slow = np.array([seconds_of(partial(oracle.makespan, d), 2).min() for d in placements])
    yield Row(f"{label}: oracle's time over a call's", slow / call, "x", 80, False)
    yield Row(f"{label}: oracle's time over a batch's", slow / np.median(each), "x", 200, False)


def moves(simulator: Simulator, placements: np.ndarray) -> np.ndarray:
    """Millions of one-op moves a second, per placement that a hill climb begins at."""
    rng = np.random.default_rng(1)
    count, num_ops = 2000, simulator.problem.num_ops
    ops, targets = rng.integers(0, num_ops, count), rng.integers(0, NUM_DEVICES, count)
    tables = search_tables(simulator)
    hill_climb(tables, placements[0].copy(), ops, targets)
    speeds = []
    for devices in placements[:9]:
        began = thread_time()
        hill_climb(tables, devices.copy(), ops, targets)
        speeds.append(count / (thread_time() - began) / 1e6)
    return np.array(speeds)


def core_rows(problem: PlacementProblem, repeats: int) -> list[Row]:
    """Two cores against one; measured in turn, so that a busy moment meets both.

    Hashing, which shares nothing, tells what two threads can gain on this machine now.
    """
    placements = np.random.default_rng(2).integers(0, NUM_DEVICES, (8 * BATCH, problem.num_ops))
    one, two = (Simulator(problem, "contention_free", num_threads=n) for n in (1, 2))
    data = bytes(2_000 * BATCH)
    pool = ThreadPoolExecutor(2)

    def hash_on(threads: int) -> None:
        share = memoryview(data)[: len(data) // threads]
        list(pool.map(lambda _: sha256(share).digest(), range(threads)))

    pairs: dict[str, tuple[Callable[[], object], Callable[[], object], float | None]] = {
        "makespans() on two cores against one": (
            partial(one.makespans, placements),
            partial(two.makespans, placements),
            1.7,
        ),
        "SHA-256 likewise: what the machine has to give": (
            partial(hash_on, 1),
            partial(hash_on, 2),
            None,
        ),
    }
    rows = []
    with pool:
        for label, (alone, together, target) in pairs.items():
            values = [
                seconds_of(alone, 1, perf_counter)[0] / seconds_of(together, 1, perf_counter)[0]
                for _ in range(repeats)
            ]
            rows.append(Row(label, np.array(values), "x", target, False))
    return rows


def big_rows(num_ops: int) -> list[Row]:
    """A large random DAG, measured in a process of its own for the sake of its memory."""
    command = [sys.executable, str(Path(__file__).resolve()), "--big-ops", str(num_ops), "--child"]
    words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    gigabytes, small, *big = (float(word) for word in words)
    label = f"random DAG, {num_ops:,} ops, {2 * num_ops:,} edges, {BIG_DEVICES} devices"
    each = np.array(big) / num_ops / small
    return [
        Row(f"{label}: makespan()", np.array(big), "s", 1.5),
        Row("the same: peak memory of the process", np.array([gigabytes]), "GB", 2),
        Row(f"the same: time per op over that at {SMALL_OPS:,} ops", each, "x", 3),
    ]


def measure_big(num_ops: int) -> None:
    """In the process of `big_rows`: prints GB, the small graph's s per op, the big one's s."""
    rng = np.random.default_rng(3)
    results = []
    for size, repeats in ((SMALL_OPS, 15), (num_ops, 5)):
        simulator = Simulator(random_dag(size, 2 * size, BIG_DEVICES), "serial_links")
        devices = rng.integers(0, BIG_DEVICES, size)
        results.append(seconds_of(partial(simulator.makespan, devices), repeats))
    gigabytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    print(gigabytes, np.median(results[0]) / SMALL_OPS, *results[1])


FRESH = """
from time import perf_counter
began = perf_counter()
import numpy as np
from doppler import CostModel, DataflowGraph, PlacementProblem
from doppler.hardware import make_topology
from doppler.simulator import Simulator
topology = make_topology("v100", 2)
graph = DataflowGraph.from_edges("edge", 2, np.array([[0, 1]]))
costs = CostModel(np.ones((2, 2)), np.ones(2), np.zeros(2), np.ones(2), "bench")
simulator = Simulator(PlacementProblem(graph, topology, costs))
built = perf_counter()
simulator.makespan(np.array([0, 1]))
print(perf_counter() - built, perf_counter() - began)
"""


def fresh_rows(repeats: int) -> list[Row]:
    """The first call in new processes; the first of them warms the cache."""
    command = [sys.executable, "-c", FRESH]
    root = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    runs = [
        subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout
        for _ in range(1 + repeats)
    ]
    first, whole = np.array([run.split() for run in runs[1:]], float).T
    return [
        Row("first makespan() in a fresh process, warm cache", first, "s", 1),
        Row("the same with imports", whole, "s"),
    ]


def machine() -> str:
    """Processor, cores, load and versions."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                processor = line.partition(":")[2].strip()
                break
    versions = []
    for package in ("numpy", "numba", "simpy"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            versions.append(f"no {package}")
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    return (
        f"{processor}, {os.cpu_count()} cores, load average {load:.2f}, {date.today()}, Python "
        f"{platform.python_version()}, {', '.join(versions)}"
    )


def markdown(title: str, header: list[str], rows: list[Row]) -> str:
    """The table as Markdown."""
    lines = [header, ["---"] * len(header), *(row.cells() for row in rows)]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{table}\n\n{title}.\n"


def main(arguments: list[str] | None = None) -> list[Row]:
    """Measures, prints and returns the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=15, help="of each measurement")
    parser.add_argument("--big-ops", type=int, default=1_000_000, help="ops of the largest graph")
    parser.add_argument("--output", type=Path, help="also write the table here, as Markdown")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.repeats < 1 or options.big_ops < SMALL_OPS:
        parser.error(f"--repeats must be 1 or more, --big-ops {SMALL_OPS} or more")
    if options.child:
        measure_big(options.big_ops)
        return []
    origin, graphs = problems()
    title = f"{origin}; {machine()}"
    rows: list[Row] = []
    with one_core():
        for name, problem in graphs.items():
            rows += graph_rows(name, problem, options.repeats)
        rows += big_rows(options.big_ops)
        rows += fresh_rows(min(5, options.repeats))
    rows += core_rows(graphs["Llama-layer"], options.repeats)
    header = ["what", "measured: median [quartiles]", "target", "ratio", "met"]
    table = Table(*header, title=title)
    for row in rows:
        table.add_row(*row.cells())
    Console().print(table)
    if options.output is not None:
        write_text_atomically(options.output, markdown(title, header, rows))
    return rows


if __name__ == "__main__":
    main()
