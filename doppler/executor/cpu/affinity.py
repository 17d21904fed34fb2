"""Which CPU each device's thread is bound to, where the operating system lets threads be bound."""

from __future__ import annotations

import os
from pathlib import Path

from doppler.errors import ConfigurationError

SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def choose_cpus(num_devices: int, pin_cores: bool | str) -> list[int] | None:
    """A CPU for each device, those of different physical cores first, or None for no binding.

    Args:
        num_devices: how many are needed.
        pin_cores: True, False, or "auto": only if a physical core is left for copies and other
            processes, since a bound thread cannot evade whoever else runs on its core.

    Raises:
        ConfigurationError: neither of these, or True without enough CPUs or without a way to bind.
    """
    if isinstance(pin_cores, str):
        if pin_cores != "auto":
            raise ConfigurationError(f"pin_cores: {pin_cores!r} is neither auto, true nor false")
    elif not isinstance(pin_cores, bool):
        raise ConfigurationError(f"pin_cores: {pin_cores!r} is neither auto, true nor false")
    if pin_cores is False:
        return None
    cpus, num_cores = _by_core()
    if pin_cores == "auto":
        return cpus[:num_devices] if num_cores > num_devices else None
    if not hasattr(os, "sched_setaffinity"):
        raise ConfigurationError("pin_cores: this system does not let threads be bound to a CPU")
    if len(cpus) < num_devices:
        raise ConfigurationError(
            f"pin_cores: {num_devices} devices, but this process may use {len(cpus)} CPUs only"
        )
    return cpus[:num_devices]


def allowed_cpus() -> set[int]:
    """CPUs that the calling thread may use; empty where that cannot be told."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()


def bind_calling_thread(cpus: set[int]) -> None:
    """Lets the calling thread, and threads that it starts, run on these CPUs only.

    Raises:
        OSError: these CPUs are not ours.
    """
    os.sched_setaffinity(0, cpus)  # 0 is the calling thread, not the process


def _by_core() -> tuple[list[int], int]:
    """Allowed CPUs, one of each physical core before the second ones; and the number of cores."""
    seen: dict[str, int] = {}
    ranked = []
    for cpu in sorted(allowed_cpus()):
        try:
            core = Path(SIBLINGS.format(cpu)).read_text(encoding="ascii").strip()
        except OSError:
            core = str(cpu)
        ranked.append((seen.get(core, 0), cpu))
        seen[core] = seen.get(core, 0) + 1
    return [cpu for _, cpu in sorted(ranked)], len(seen)
