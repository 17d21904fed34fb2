"""Progress on a terminal as bars, elsewhere as an occasional line."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

LINE_SECONDS, REFRESH_SECONDS = 15.0, 0.2
WIDE = 120
"""Columns of a terminal from which bars and names have their full width."""

Advance = Callable[[int, str], None]
"""Called with how much is done in all and a short note."""


class ProgressDisplay:
    """Shows how far a long step is, without a thread of its own: one would disturb measuring.

    Args:
        console: where to; a console that is no terminal gets a line every `LINE_SECONDS` and one
            at the end of each step.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    @contextmanager
    def step(self, name: str, total: int) -> Iterator[Advance]:
        """Shows one step of `total` parts for as long as the context lasts."""
        if self.console.is_terminal:
            yield from self._bar(name, total)
        else:
            yield from self._lines(name, total)

    def _bar(self, name: str, total: int) -> Iterator[Advance]:
        wide = self.console.width >= WIDE
        name_width, bar_width = (22, 30) if wide else (0, 8)
        times = 2 * (len("0:00:00") + 1)
        fixed = max(name_width, len(name)) + bar_width + 2 * len(str(total)) + times + 4
        room = max(1, self.console.width - fixed)  # longer notes would squeeze the bar out
        columns = (
            TextColumn(f"{{task.description:<{name_width}}}", markup=False),
            BarColumn(bar_width=bar_width),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
        )
        last = 0.0
        with Progress(*columns, console=self.console, auto_refresh=False) as progress:
            task = progress.add_task(name, total=total, note="")

            def advance(done: int, note: str = "") -> None:
                nonlocal last
                shown = note if len(note) <= room else f"{note[: room - 1]}…"
                progress.update(task, completed=done, note=shown)
                now = time.monotonic()
                if now - last >= REFRESH_SECONDS or done >= total:
                    last = now
                    progress.refresh()

            progress.refresh()
            yield advance

    def _lines(self, name: str, total: int) -> Iterator[Advance]:
        began = last = time.monotonic()
        seen: tuple[int, str] = (0, "")

        def line() -> str:
            done, note = seen
            return f"{name}: {done} of {total} after {time.monotonic() - began:.0f} s  {note}"

        def advance(done: int, note: str = "") -> None:
            nonlocal last, seen
            seen = (done, note)
            if time.monotonic() - last >= LINE_SECONDS:
                last = time.monotonic()
                self._print(line())

        yield advance
        self._print(line())

    def _print(self, text: str) -> None:
        self.console.print(text.rstrip(), highlight=False, soft_wrap=True)
