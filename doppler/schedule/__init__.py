"""Placements, schedules (who ran where and when), lower bounds and metrics."""

from doppler.schedule.bounds import LowerBounds, lower_bounds
from doppler.schedule.placement import Placement
from doppler.schedule.schedule import Schedule
from doppler.schedule.validation import validate_schedule

__all__ = ["LowerBounds", "Placement", "Schedule", "lower_bounds", "validate_schedule"]
