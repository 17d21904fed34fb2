"""The results table: every placement simulated and, where there are devices, measured.

Runs on emulated devices stand in the same columns under another name.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from doppler import Placement, Schedule
from doppler.errors import CapacityError, UnknownQuantityError
from doppler.files import write_text_atomically
from doppler.schedule import lower_bounds
from doppler.viz.figure import format_seconds
from scripts.progress import ProgressDisplay

if TYPE_CHECKING:
    from doppler.executor import Executor, Measurement, ResultCheck
    from doppler.simulator import Robustness, Simulator

UNKNOWN = "-"
MEASURED = "measured"
TIE_MARK = " *"
TIE_SAMPLES = 64
DRIFT_PERCENT = 15.0
"""A median simulation error above this is worth a footnote."""
HEADERS = {
    "scheduler": "scheduler",
    "simulated_makespan": "simulated makespan",
    "measured_makespan": "measured makespan",
    "simulation_error": "simulation error",
    "speed_up": "speed-up",
    "gap": "gap to bound",
    "bytes_moved": "bytes moved",
    "utilisation": "utilisation",
    "result_check": "result check",
}
CSV_COLUMNS = (
    "scheduler",
    "simulated_makespan_s",
    "tie_sensitivity",
    "measured_makespan_median_s",
    "measured_makespan_q1_s",
    "measured_makespan_q3_s",
    "measured_runs",
    "measured_outliers",
    "simulation_error_percent",
    "speed_up_over_single_device",
    "gap_to_lower_bound_percent",
    "bytes_moved",
    "device_utilisation_percent",
    "result_check",
    "result_max_relative_error",
)


@dataclass
class Row:
    """One placement and what was found out about it; None where that is unknown.

    Args:
        label: first column.
        placement: None where the scheduler could not make one.
        reason: why there is no placement or no simulated makespan.
    """

    label: str
    placement: Placement | None
    reason: str | None = None
    simulated: Schedule | None = None
    robustness: Robustness | None = None
    measurement: Measurement | None = None
    check: ResultCheck | None = None
    bytes_moved: float | None = None


@dataclass
class ResultsTable:
    """Rows plus what they are compared with.

    Args:
        rows: in the order of printing.
        lower_bound: of the problem, see `doppler.schedule.lower_bounds`. [s]
        single_device: label of the row that speed-ups refer to.
        title: printed on top.
        footnotes: why cells are empty and how others are meant.
    """

    rows: list[Row]
    lower_bound: float
    single_device: str
    title: str
    footnotes: list[str] = field(default_factory=list)

    def row(self, label: str) -> Row | None:
        """The row of that label, or None."""
        return next((row for row in self.rows if row.label == label), None)

    @property
    def origin(self) -> str:
        """What runs are called: measured, or emulated where devices only slept."""
        runs = [row.measurement for row in self.rows if row.measurement is not None]
        return runs[0].schedule.origin if runs else MEASURED

    @property
    def headers(self) -> dict[str, str]:
        """`HEADERS` with the true name of the runs."""
        return {key: text.replace(MEASURED, self.origin) for key, text in HEADERS.items()}

    @property
    def columns(self) -> tuple[str, ...]:
        """`CSV_COLUMNS` with the true name of the runs."""
        return tuple(name.replace(MEASURED, self.origin) for name in CSV_COLUMNS)

    def numbers(self, row: Row) -> dict[str, Any]:
        """The row's cells as plain numbers by `columns`, None where unknown."""
        return dict(zip(self.columns, self._numbers(row).values(), strict=True))

    def _numbers(self, row: Row) -> dict[str, Any]:
        """The same by `CSV_COLUMNS`."""
        simulated, measured = row.simulated, row.measurement
        schedule = simulated if measured is None else measured.schedule
        cells: dict[str, Any] = dict.fromkeys(CSV_COLUMNS)
        cells["scheduler"] = row.label
        cells["bytes_moved"] = row.bytes_moved
        cells["speed_up_over_single_device"] = self._speed_up(row)
        if simulated is not None:
            cells["simulated_makespan_s"] = simulated.makespan
            if self.lower_bound > 0:
                # rounding alone can put the sum of a full device below the bound
                gap = max(0.0, 100 * (simulated.makespan / self.lower_bound - 1))
                cells["gap_to_lower_bound_percent"] = gap
        if row.robustness is not None and np.isfinite(row.robustness.tie_sensitivity):
            cells["tie_sensitivity"] = row.robustness.tie_sensitivity
        if measured is not None:
            cells["measured_makespan_median_s"] = float(measured.median)
            cells["measured_makespan_q1_s"] = float(measured.q1)
            cells["measured_makespan_q3_s"] = float(measured.q3)
            cells["measured_runs"] = len(measured.makespans)
            cells["measured_outliers"] = len(measured.outliers)
            if simulated is not None:
                error = 100 * (simulated.makespan / float(measured.median) - 1)
                cells["simulation_error_percent"] = error
        if schedule is not None:
            cells["device_utilisation_percent"] = 100 * float(schedule.utilisation.mean())
        if row.check is not None:
            cells["result_check"] = "passed" if row.check.passed else "FAILED"
            cells["result_max_relative_error"] = float(row.check.max_relative_error)
        return cells

    def _speed_up(self, row: Row) -> float | None:
        base = self.row(self.single_device)
        if base is None:
            return None
        if base.measurement is not None and row.measurement is not None:
            return float(base.measurement.median) / float(row.measurement.median)
        if base.measurement is None and base.simulated is not None and row.simulated is not None:
            return base.simulated.makespan / row.simulated.makespan
        return None

    def texts(self, row: Row) -> list[str]:
        """The row's cells for people, in the order of `HEADERS`."""
        n = self._numbers(row)
        median = n["measured_makespan_median_s"]
        measured = UNKNOWN
        if median is not None:
            low, high = n["measured_makespan_q1_s"], n["measured_makespan_q3_s"]
            measured = f"{format_seconds(median)} [{format_seconds(low)}, {format_seconds(high)}]"
        check = n["result_check"] or UNKNOWN
        if n["result_check"]:
            check = f"{check} ({n['result_max_relative_error']:.1e})"
        simulated = UNKNOWN
        if n["simulated_makespan_s"] is not None:
            simulated = format_seconds(n["simulated_makespan_s"])
        if row.robustness is not None and row.robustness.tie_sensitive:
            simulated += TIE_MARK
        return [
            row.label,
            simulated,
            measured,
            _format(n["simulation_error_percent"], "{:+.1f} %"),
            _format(n["speed_up_over_single_device"], "{:.2f} x"),
            _format(n["gap_to_lower_bound_percent"], "{:.1f} %"),
            UNKNOWN if n["bytes_moved"] is None else _format_bytes(n["bytes_moved"]),
            _format(n["device_utilisation_percent"], "{:.0f} %"),
            check,
        ]

    def print(self, console: Console) -> None:
        """Prints the table and its footnotes; each cell stays on one line on a wide terminal."""
        table = Table(title=self.title, title_justify="left", header_style="bold")
        for index, header in enumerate(self.headers.values()):
            table.add_column(header, justify="left" if index == 0 else "right")
        for row in self.rows:
            table.add_row(*self.texts(row))
        if not console.is_terminal:  # a pipe has no width: do not fold at the assumed 80 columns
            console = Console(file=console.file, width=180, highlight=False, markup=False)
        console.print(table)
        for note in self.footnotes:
            console.print(f"  {note}", highlight=False, markup=False, soft_wrap=True)

    def to_csv(self) -> str:
        """Full precision, units in the column names, empty cells where unknown."""
        stream = io.StringIO()
        writer = csv.DictWriter(stream, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.numbers(row) for row in self.rows)
        return stream.getvalue()

    def to_markdown(self) -> str:
        """The printed table as Markdown, footnotes below."""
        headers = list(self.headers.values())
        lines = [f"**{self.title}**", "", "| " + " | ".join(headers) + " |"]
        lines.append("|---" + "|---:" * (len(headers) - 1) + "|")
        lines += ["| " + " | ".join(self.texts(row)) + " |" for row in self.rows]
        lines += ["", *(f"- {note}" for note in self.footnotes)]
        return "\n".join(lines).rstrip() + "\n"

    def save(self, csv_path: Path, markdown_path: Path) -> None:
        """Writes both files under temporary names and renames them."""
        write_text_atomically(csv_path, self.to_csv())
        write_text_atomically(markdown_path, self.to_markdown())


def evaluate(
    rows: Sequence[Row],
    simulator: Simulator,
    executor: Executor | None,
    *,
    repeats: int,
    warmup: int,
    progress: ProgressDisplay,
    single_device: str,
) -> ResultsTable:
    """Simulates every row and, with an executor, checks and measures all of them interleaved.

    Args:
        rows: filled in place.
        simulator: noise-free, of the problem that all placements belong to.
        executor: real or emulated devices, or None.
        repeats: measured runs per row, in rounds over all rows.
        warmup: unmeasured runs per row before them.
        progress: where to show how far it is.
        single_device: label of the row that speed-ups refer to.

    Returns:
        The table, with a footnote for every kind of cell that stays empty.
    """
    problem = simulator.problem
    table = ResultsTable(
        rows=list(rows),
        lower_bound=lower_bounds(problem).best,
        single_device=single_device,
        title=f"{problem.name}, {problem.num_ops} ops on {problem.num_devices} devices",
    )
    for row in table.rows:
        _simulate(row, simulator)
    placed = [row for row in table.rows if row.placement is not None]
    if executor is not None and placed:
        placements = [row.placement for row in placed if row.placement is not None]
        if executor.computes:
            with progress.step("result checks", len(placed)) as advance:
                for index, row in enumerate(placed):
                    assert row.placement is not None
                    row.check = executor.check(row.placement)
                    advance(index + 1, row.label)
        with progress.step("evaluation", (repeats + warmup) * len(placed)) as advance:
            measurements = executor.measure(
                placements,
                repeats=repeats,
                warmup=warmup,
                progress=lambda done, total: advance(done, ""),
            )
        for row, measurement in zip(placed, measurements, strict=True):
            row.measurement = measurement
    table.footnotes = _footnotes(table, simulator, executor is not None, repeats, warmup)
    return table


def _simulate(row: Row, simulator: Simulator) -> None:
    if row.placement is None:
        return
    order = row.placement.order if simulator.choose == "given" else None
    try:
        row.simulated = simulator.run(row.placement.devices, order)
    except CapacityError as error:
        row.reason = str(error)
        return
    row.robustness = simulator.robust(row.placement.devices, order, samples=TIE_SAMPLES)
    try:
        row.bytes_moved = row.simulated.bytes_moved()
    except UnknownQuantityError:
        row.bytes_moved = None


def _footnotes(
    table: ResultsTable, simulator: Simulator, measured: bool, repeats: int, warmup: int
) -> list[str]:
    problem = simulator.problem
    notes = [
        f"simulated: network {simulator.network}, choose {simulator.choose}; costs from "
        f"{problem.cost_model.source}",
        f"gap to bound: simulated makespan above {format_seconds(table.lower_bound)}, the "
        "larger of the longest chain of ops and all work shared at best, communication free",
    ]
    if measured and table.origin != MEASURED:
        notes += _emulation_notes(table, repeats, warmup)
    elif measured:
        notes += _drift_note(table)
        notes.append(
            f"measured: median [quartiles] of {repeats} runs after {warmup} warm-up runs, rows "
            "interleaved; speed-up and utilisation are measured, speed-up is over "
            f"{table.single_device}"
        )
        notes += _outlier_note(table)
    else:
        notes.append(
            f"{UNKNOWN} measured makespan, simulation error, result check: no executor, nothing "
            f"was run on real devices; speed-up over {table.single_device} and utilisation are "
            "simulated"
        )
    if any(row.robustness is not None and row.robustness.tie_sensitive for row in table.rows):
        notes.append(
            f"{TIE_MARK.strip()} tie-sensitive: the simulated makespan depends by a percent or "
            f"more on which of equally urgent tasks goes first ({TIE_SAMPLES} random tie orders)"
        )
    if problem.graph.output_bytes is None:
        notes.append(f"{UNKNOWN} bytes moved: the problem's source gives seconds, not bytes")
    notes += [f"{row.label}: {row.reason}" for row in table.rows if row.reason]
    return notes


def _emulation_notes(table: ResultsTable, repeats: int, warmup: int) -> list[str]:
    """What emulated runs are, and how far to trust them."""
    runs = [row.measurement for row in table.rows if row.measurement is not None]
    environment = runs[0].environment
    late = [float(environment.get(f"lateness_{key}_s", 0.0)) for key in ("median", "max")]
    return [
        f"{table.origin}: nothing was computed or measured, ops and transfers slept for the "
        f"simulator's seconds; median [quartiles] of {repeats} runs after {warmup} warm-up runs, "
        f"rows interleaved; speed-up and utilisation are {table.origin}, speed-up is over "
        f"{table.single_device}",
        f"{table.origin}: ends of ops and transfers were taken in {format_seconds(late[0])} late "
        f"in the median, {format_seconds(late[1])} at most; the simulation error holds that, but "
        f"not the {environment.get('stalls', 0)} times that this machine was busy otherwise and "
        "the emulated clock stood still",
        f"{UNKNOWN} result check: emulated devices have no results",
    ]


def _outlier_note(table: ResultsTable) -> list[str]:
    """Which runs are far from the others of their row."""
    measured = [(row.label, row.measurement) for row in table.rows if row.measurement is not None]
    found = "; ".join(f"{label}{m.outlier_note()}" for label, m in measured if m.outliers)
    return [f"by median absolute deviation, counted all the same: {found}"] if found else []


def _drift_note(table: ResultsTable) -> list[str]:
    """Says so when the rows err much: the devices are not as they were when calibrated."""
    errors = [table.numbers(row)["simulation_error_percent"] for row in table.rows]
    known = [error for error in errors if error is not None]
    bias = median(known) if known else 0.0
    if abs(bias) <= DRIFT_PERCENT:
        return []
    return [
        f"simulation error: {bias:+.0f} % in the median row, so the machine was busier or idler "
        "while it was calibrated than now; calibrate and measure again on a quiet machine before "
        "trusting either column"
    ]


def tie_note(row: Row) -> str:
    """What a picture says of a tie-sensitive placement, nothing of others."""
    if row.robustness is None or not row.robustness.tie_sensitive:
        return ""
    orders = np.append(row.robustness.tie_orders, row.robustness.nominal)
    worst = float(orders.max())
    reached = format_seconds(worst) if np.isfinite(worst) else "out of memory"
    return f"tie-sensitive: {format_seconds(float(orders.min()))} to {reached} over tie orders"


def _format(value: float | None, template: str) -> str:
    return UNKNOWN if value is None else template.format(value)


def _format_bytes(amount: float) -> str:
    for scale, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if amount >= scale:
            return f"{amount / scale:.3g} {unit}"
    return f"{amount:.0f} B"
