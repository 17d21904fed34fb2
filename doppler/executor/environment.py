"""What a measurement ran on: recorded beside every number, compared before a profile is used."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch


def describe_environment(
    backend: str, num_devices: int, device_names: Sequence[str] | None = None
) -> dict[str, Any]:
    """Names the machine, the software and its settings.

    Args:
        backend: executor backend, for example "cpu".
        num_devices: devices of the executor.
        device_names: what the devices are; None: for "cuda" the names of the cards, round and
            round where there are more devices than cards, else this machine's CPU for each.

    Returns:
        JSON values; an entry that cannot be read here is None.
    """
    if device_names is None:
        device_names = _device_names(backend, num_devices)
    return {
        "backend": backend,
        "num_devices": num_devices,
        "device_names": list(device_names),
        "threads_per_device": 1,
        "torch_threads": torch.get_num_threads(),
        "cpu_model": _cpu_model(),
        "architecture": platform.machine(),
        "num_cpus": num_usable_cpus(),
        "affinity": _affinity(),
        "governor": _governor(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "system": platform.system(),
        "python_version": platform.python_version(),
        "torch_version": torch.__version__,
        "clock": "time.perf_counter",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def num_usable_cpus() -> int:
    """CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _device_names(backend: str, num_devices: int) -> list[str]:
    if backend != "cuda":
        return [_cpu_model() or "CPU"] * num_devices
    cards = [torch.cuda.get_device_name(card) for card in range(torch.cuda.device_count())]
    if not cards:
        return ["no card"] * num_devices
    return name_devices([device % len(cards) for device in range(num_devices)], cards)


def name_devices(cards: list[int], card_names: Sequence[str]) -> list[str]:
    """Names of devices by their card's name; those that share a card are called logical.

    Args:
        cards: card of each device. # (num_devices,)
        card_names: name of each card.
    """
    return [
        f"{card_names[card]}, logical device {cards[:device].count(card)} of {cards.count(card)}"
        if cards.count(card) > 1
        else card_names[card]
        for device, card in enumerate(cards)
    ]


def _affinity() -> list[int] | None:
    """Numbers of the CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    for line in lines:
        label, _, value = line.partition(":")
        if label.strip() in ("model name", "Model", "cpu model"):
            return value.strip()
    return platform.processor() or None


def _governor() -> str | None:
    path = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return None
