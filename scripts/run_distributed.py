"""Measures a placement on the processes that torchrun started, one device each.

torchrun --nproc-per-node 2 scripts/run_distributed.py --workload ffnn --placement best.json
torchrun --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint host:29500 \\
    scripts/run_distributed.py --workload llama_block --repeats 30 --trace run.json

Rank 0 prints. Without a placement the critical-path scheduler makes one.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from doppler import Placement, PlacementProblem
from doppler.errors import ConfigurationError, DopplerError
from doppler.executor import DistributedExecutor
from doppler.executor.distributed.fleet import JoinedFleet, serve_joined
from doppler.hardware import make_topology
from doppler.simulator import Simulator
from doppler.simulator.simulator import CHOOSE_RULES
from doppler.workloads import make_workload
from doppler.workloads.registry import SCALES, WORKLOADS

EXIT_ERROR, EXIT_WRONG_RESULT = 2, 3


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one rank; returns the exit status."""
    options = parse(arguments)
    if "RANK" not in os.environ:
        print("error: start this with torchrun --nproc-per-node N", file=sys.stderr)
        return EXIT_ERROR
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if dist.get_rank() != 0:
        serve_joined()
        return 0
    try:
        return measure(options)
    except DopplerError as error:
        print(f"error: {error}", file=sys.stderr)
        return EXIT_ERROR


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="ffnn", choices=sorted(WORKLOADS))
    parser.add_argument("--scale", default="host", choices=SCALES)
    parser.add_argument("--num-shards", type=int, default=None)
    parser.add_argument("--placement", type=Path, default=None, help="a placement file")
    parser.add_argument("--choose", default="fifo", choices=CHOOSE_RULES)
    parser.add_argument("--repeats", type=int, default=15, help="measured runs")
    parser.add_argument("--warmup", type=int, default=2, help="unmeasured runs before them")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="seconds for one run")
    parser.add_argument("--trace", type=Path, default=None, help="write the median run here")
    return parser.parse_args(arguments)


def measure(options: argparse.Namespace) -> int:
    """What rank 0 does: checks, measures, prints."""
    workload = make_workload(options.workload, options.scale, options.num_shards)
    world = dist.get_world_size()
    problem = workload.problem(make_topology("cpu", world))
    with DistributedExecutor(
        workload,
        world,
        problem=problem,
        choose=options.choose,
        timeout_s=options.timeout_s,
        fleet=JoinedFleet(),
    ) as executor:
        placement, label = find_placement(options.placement, problem)
        check = executor.check(placement)
        (measurement,) = executor.measure([placement], options.repeats, options.warmup)
        uncertainty = executor.clock_uncertainty
        hosts = [f"{rank['host']}" for rank in executor.fleet.ranks]
    schedule = measurement.schedule
    print(f"{problem.name}: {problem.num_ops} ops on {world} ranks ({', '.join(hosts)}), gloo")
    print(f"placement          {label}")
    print(f"measured makespan  {measurement}, {measurement.repeats} runs")
    print(f"transfers          {schedule.num_transfers}")
    print(f"utilisation        {100 * schedule.utilisation.mean():.0f} %")
    print(f"clock uncertainty  {1e6 * uncertainty:.0f} us")
    verdict = "passed" if check.passed else "FAILED"
    print(f"result check       {verdict} ({check.max_relative_error:.1e})")
    if options.trace is not None:
        from doppler.viz import write_trace

        write_trace([(label, schedule)], options.trace)
        print(f"trace              {options.trace}")
    return 0 if check.passed else EXIT_WRONG_RESULT


def find_placement(path: Path | None, problem: PlacementProblem) -> tuple[Placement, str]:
    """The placement of a file, or the critical-path scheduler's, and what to call it."""
    if path is None:
        from doppler.schedulers import CriticalPath

        simulator = Simulator(problem)
        rng = np.random.default_rng(0)
        return CriticalPath(ties="id").schedule(problem, simulator, rng), "critical path"
    if not path.is_file():
        raise ConfigurationError(f"--placement {path}: there is no such file")
    return Placement.load(path, problem), str(path)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Not through the interpreter's end, which would wait for a kernel that hangs.
    os._exit(status)
