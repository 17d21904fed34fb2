"""Checks that a schedule obeys the executor semantics; used on every simulated and measured run."""

from __future__ import annotations

from doppler.schedule.schedule import Schedule


def validate_schedule(schedule: Schedule, tolerance: float = 1e-9) -> None:
    """Raises `ScheduleError` at the first rule that a schedule breaks."""
    raise NotImplementedError
