"""The barriers of bulk-synchronous schedules, checked in place of work conservation."""

from __future__ import annotations

import numpy as np

from doppler.errors import ScheduleError
from doppler.graph import hop_depths
from doppler.schedule.schedule import Schedule


def check_barriers(schedule: Schedule, tolerance: float) -> None:
    """Raises at the first op or transfer that does not wait for its level.

    No transfer starts before all ops of its producer's level are done, no op before all ops of the
    levels before it and their transfers are.

    Raises:
        ScheduleError: naming op or transfer, level and times.
    """
    level = hop_depths(schedule.problem.graph)
    ops_done = np.zeros(level.max() + 1)
    np.maximum.at(ops_done, level, schedule.finish)
    hop_level = level[schedule.transfer_ops]
    for hop in np.flatnonzero(schedule.transfer_start < ops_done[hop_level] - tolerance)[:1]:
        raise ScheduleError(
            f"the transfer of op {schedule.transfer_ops[hop]} to device "
            f"{schedule.transfer_targets[hop]} starts at {schedule.transfer_start[hop]:.9g} s, "
            f"before all ops of level {hop_level[hop]} are done at "
            f"{ops_done[hop_level[hop]]:.9g} s"
        )
    all_done = ops_done.copy()
    np.maximum.at(all_done, hop_level, schedule.transfer_finish)
    opens = np.concatenate([[0.0], np.maximum.accumulate(all_done)])[level]
    for op in np.flatnonzero(schedule.start < opens - tolerance)[:1]:
        raise ScheduleError(
            f"op {op} of level {level[op]} starts at {schedule.start[op]:.9g} s, before the levels "
            f"before it and their transfers are done at {opens[op]:.9g} s"
        )
