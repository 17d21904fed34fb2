"""Execution on real devices: dispatching, CPU threads, measuring, checking results, calibration."""

from doppler.executor.base import Executable, Executor
from doppler.executor.calibration.calibrate import calibrate
from doppler.executor.calibration.contention import predict
from doppler.executor.calibration.profile import Profile
from doppler.executor.calibration.timings import CopyTiming, KernelTiming
from doppler.executor.cpu.executor import CpuExecutor
from doppler.executor.cuda.executor import CudaExecutor
from doppler.executor.dispatcher import Dispatcher
from doppler.executor.distributed.executor import DistributedExecutor
from doppler.executor.emulated import EmulatedExecutor, Lateness
from doppler.executor.environment import describe_environment
from doppler.executor.measurement import Measurement
from doppler.executor.plan import DispatchPlan, HopTask, OpTask
from doppler.executor.result_check import ResultCheck

__all__ = [
    "CopyTiming",
    "CpuExecutor",
    "CudaExecutor",
    "DispatchPlan",
    "Dispatcher",
    "DistributedExecutor",
    "EmulatedExecutor",
    "Executable",
    "Executor",
    "HopTask",
    "KernelTiming",
    "Lateness",
    "Measurement",
    "OpTask",
    "Profile",
    "ResultCheck",
    "calibrate",
    "describe_environment",
    "predict",
]
