"""Execution on real devices: dispatching, CPU threads, measuring, checking results, calibration."""

from doppler.executor.base import Executor
from doppler.executor.cpu import CpuExecutor
from doppler.executor.dispatcher import Dispatcher, DispatchPlan, HopTask, OpTask
from doppler.executor.measurement import Measurement
from doppler.executor.result_check import ResultCheck

__all__ = [
    "CpuExecutor",
    "DispatchPlan",
    "Dispatcher",
    "Executor",
    "HopTask",
    "Measurement",
    "OpTask",
    "ResultCheck",
]
