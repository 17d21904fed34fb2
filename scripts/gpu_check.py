"""Checks everything that needs a GPU, on one card with logical devices, and writes a report.

python scripts/gpu_check.py                      # 4 devices, 6 minutes at most
python scripts/gpu_check.py --devices 2 --minutes 3

The report goes to docs/hardware/<device>-<date>.md, with a Perfetto trace beside it. Every step is
a process of its own with a time limit: one that fails, hangs or breaks its CUDA context costs the
others nothing, and what it had printed stays in the report.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from doppler.errors import DopplerError
from doppler.files import write_text_atomically
from scripts.gpu_check_steps import STEPS, TRACE, Settings, Step

ROOT = Path(__file__).resolve().parents[1]
REPORTS = ROOT / "docs" / "hardware"
EXIT_FAILED, EXIT_ERROR = 1, 2
LEAST_SECONDS = 5.0
"""What a step needs to begin at all. [s]"""


@dataclass(frozen=True)
class Outcome:
    """How a step ended.

    Args:
        title: of the step.
        status: "done", or why it is not.
        seconds: that it took. [s]
        output: what it printed.
    """

    title: str
    status: str
    seconds: float
    output: str


def main(arguments: list[str] | None = None) -> int:
    """Runs all steps or, as a child of itself, one; returns the process's exit status."""
    args = parse(arguments)
    if args.step is not None:
        return run_one(args)
    problem = complaint(args)
    if problem is not None:
        print(f"error: {problem}", file=sys.stderr)
        return EXIT_ERROR
    name = "CPU" if args.backend == "cpu" else card_name()
    folder = REPORTS if args.output is None else Path(args.output)
    stem = f"{sanitised(name)}-{datetime.now(UTC):%Y-%m-%d}"
    folder.mkdir(parents=True, exist_ok=True)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as scratch:
        for outcome in run_all(args, scratch):
            outcomes.append(outcome)
            print(f"{outcome.title}: {outcome.status}, {outcome.seconds:.0f} s\n{outcome.output}")
            sys.stdout.flush()
            trace = Path(scratch) / TRACE
            if trace.exists():
                shutil.copyfile(trace, folder / f"{stem}.{TRACE}")
            text = report(name, args, outcomes, f"{stem}.{TRACE}" if trace.exists() else None)
            write_text_atomically(folder / f"{stem}.md", text)
    print(f"report: {folder / f'{stem}.md'}")
    return EXIT_FAILED if any(outcome.status != "done" for outcome in outcomes) else 0


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=4, help="logical devices (default: 4)")
    parser.add_argument("--minutes", type=float, default=6.0, help="at most (default: 6)")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS), help="only these")
    parser.add_argument("--output", help="folder of the report (default: docs/hardware)")
    parser.add_argument(
        "--backend", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS
    )
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def complaint(args: argparse.Namespace) -> str | None:
    """What is wrong with the command line or the machine, in one line."""
    if args.devices < 1:
        return f"--devices: {args.devices} is below 1"
    if not 0 < args.minutes < float("inf"):
        return f"--minutes: {args.minutes} is no time"
    if args.backend == "cpu":
        return "--backend cpu needs --output" if args.output is None else None
    import torch

    if not torch.cuda.is_available():
        return f"no GPU: PyTorch ({torch.__version__}) finds no CUDA device, nothing was checked"
    return None


def card_name() -> str:
    """Name of the first card."""
    import torch

    return str(torch.cuda.get_device_name(0))


def sanitised(name: str) -> str:
    """A name as part of a file name."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unknown"


def run_one(args: argparse.Namespace) -> int:
    """A step in this process."""
    try:
        STEPS[args.step].run(Settings(args.backend, args.devices, Path(args.scratch)))
    except DopplerError as error:
        print(f"error: {error}")
        return EXIT_ERROR
    return 0


def child_command(args: argparse.Namespace, name: str, scratch: str) -> list[str]:
    """How a step is run in a process of its own."""
    return [
        sys.executable, str(Path(__file__).resolve()), "--step", name, "--scratch", scratch,
        "--backend", args.backend, "--devices", str(args.devices),
    ]  # fmt: skip


def run_all(
    args: argparse.Namespace,
    scratch: str,
    command: Callable[[argparse.Namespace, str, str], list[str]] = child_command,
) -> Iterator[Outcome]:
    """Runs the chosen steps one after the other, each within its share of the time."""
    total = 60.0 * args.minutes
    end = time.monotonic() + total
    for name in (name for name in STEPS if name in args.steps):
        limit = min(total * STEPS[name].share, end - time.monotonic())
        if limit < min(LEAST_SECONDS, total):
            yield Outcome(STEPS[name].title, "not run, the time was over", 0.0, "")
        else:
            yield run_child(STEPS[name], command(args, name, scratch), limit)


def run_child(step: Step, command: list[str], limit: float) -> Outcome:
    """Runs a command and keeps what it printed, also where it does not end by itself."""
    began = time.monotonic()
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        child = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = child.wait(limit)
            status = "done" if code == 0 else f"FAILED with status {code}"
        except subprocess.TimeoutExpired:
            status = f"ENDED at its time limit of {limit:.0f} s"
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        output.seek(0)
        text = output.read()
    return Outcome(step.title, status, time.monotonic() - began, text.rstrip())


def report(name: str, args: argparse.Namespace, outcomes: list[Outcome], trace: str | None) -> str:
    """The report as Markdown."""
    import torch

    lines = [
        f"# {name}, {datetime.now(UTC):%Y-%m-%d}",
        "",
        f"Made by `python scripts/gpu_check.py --devices {args.devices} --minutes "
        f"{args.minutes:g}`; PyTorch {torch.__version__}, CUDA {torch.version.cuda}, Python "
        f"{sys.version.split()[0]}. Devices that share a card are *logical*: they compete for it, "
        "so figures of several devices say nothing of several cards.",
        "",
        "| step | | seconds |",
        "| --- | --- | ---: |",
    ]
    lines += [f"| {each.title} | {each.status} | {each.seconds:.0f} |" for each in outcomes]
    for each in outcomes:
        lines += ["", f"## {each.title}", "", each.status.capitalize() + ".", ""]
        if each.title == STEPS["trace"].title and trace is not None:
            lines += [f"[{trace}]({trace}), for https://ui.perfetto.dev", ""]
        if each.output:
            lines += ["```text", each.output, "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
