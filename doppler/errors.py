"""Every error that the library raises on purpose, so that a caller can catch them by kind.

All of them derive from `DopplerError`; the scripts print such an error as one short message and
exit with status 2, while anything else keeps its traceback because it is a defect of ours.
"""

from __future__ import annotations


class DopplerError(Exception):
    """Base class of the library's own errors: wrong input, wrong use, or a failed device."""


class InvalidGraphError(DopplerError, ValueError):
    """A dataflow graph breaks a rule (cycle, dangling or duplicate edge, bad amount)."""


class InvalidProblemError(DopplerError, ValueError):
    """Devices, links or costs do not fit together or hold an impossible value."""


class InvalidPlacementError(DopplerError, ValueError):
    """A placement or an order does not fit its problem."""


class FileFormatError(DopplerError, ValueError):
    """A file cannot be read as what it claims to be; the message names file, line or field."""


class UnknownQuantityError(DopplerError, ValueError):
    """Something was asked for (bytes, FLOPs, meta-ops) that the problem's source does not say."""


class CapacityError(DopplerError, RuntimeError):
    """A placement needs more memory on a device than the device has."""


class ScheduleError(DopplerError, ValueError):
    """A schedule violates the executor semantics (precedence, overlap, arrival, idling)."""


class ExecutionError(DopplerError, RuntimeError):
    """A run on real devices failed; the message names op and device."""


class ProfileError(DopplerError, ValueError):
    """A calibration profile is of another machine or torch, or lacks what was asked for."""


class ConfigurationError(DopplerError, ValueError):
    """An option has an unknown name or an impossible value."""


class CheckpointError(DopplerError, ValueError):
    """A checkpoint or run folder cannot be resumed from."""


class TrainingError(DopplerError, RuntimeError):
    """Training cannot go on; the message names stage and update."""
