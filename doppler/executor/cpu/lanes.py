"""Threads that run a backend's tasks: one lane per CPU device, one or more per link."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import torch

from doppler.executor.cpu.affinity import allowed_cpus, bind_calling_thread

_Job = tuple[Callable[[Any, "Lane"], None], Any]

_torch_threads_lock = threading.Lock()


def use_one_torch_thread() -> None:
    """Limits torch to one intra-op thread in the calling thread, and in no other.

    `torch.set_num_threads` sets the calling thread's OpenMP and MKL limits and a process-wide value
    that a thread reads when it first runs a parallel operation. Hence the first query, so that
    this thread has read the value before it is changed (it would overwrite our limit later), and
    a short-lived thread that sets the process-wide value back without touching the caller's limit.
    """
    with _torch_threads_lock:
        previous = torch.get_num_threads()
        torch.set_num_threads(1)
        restorer = threading.Thread(target=torch.set_num_threads, args=(previous,), daemon=True)
        restorer.start()
        restorer.join()


class Lane:
    """A daemon thread with a queue of jobs, on one torch thread and in inference mode.

    A job is a pair (function, task); the lane calls `function(task, lane)`, which must not raise:
    the thread would die of it.

    Args:
        name: of the thread.
        cpus: the CPUs it may use; None: those of the thread that starts it.
    """

    def __init__(self, name: str, cpus: set[int] | None = None) -> None:
        self.name = name
        self._cpus = cpus
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._ready = threading.Event()
        self.put = self._queue.put
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread takes jobs."""
        return self._thread.is_alive()

    def wait_until_ready(self) -> None:
        """Returns when the thread has its settings and waits for jobs."""
        self._ready.wait()

    def stop(self) -> None:
        """Asks the thread to end after the jobs that it already has."""
        self._queue.put(None)

    def join(self, timeout: float) -> bool:
        """Waits for the end of the thread; False if it is still busy after `timeout` seconds."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        if self._cpus is not None:
            with suppress(OSError):  # the CPU was taken away since: an unbound lane works as well
                bind_calling_thread(self._cpus)
        use_one_torch_thread()
        get = self._queue.get
        with torch.inference_mode():
            self._ready.set()
            while (job := get()) is not None:
                function, task = job
                function(task, self)
                # A waiting lane must not keep the last run's tensors alive.
                del job, function, task


class Crew:
    """All lanes of one executor: `devices[d]`, and idle lanes per link.

    Under `contention_free` a link may carry several transfers at once and gets as many lanes as it
    ever needed; under the other networks it has one.

    Args:
        num_devices: how many device lanes.
        cpus: a CPU for each of them; link lanes may use all. None: nobody is bound.
    """

    def __init__(self, num_devices: int, cpus: Sequence[int] | None = None) -> None:
        # A link lane may be started by a lane that is bound: it must not inherit that.
        self._free_cpus = None if cpus is None else allowed_cpus()
        self.devices: list[Lane] = []
        self.idle: dict[int, list[Lane]] = {}
        self._link_lanes: dict[int, list[Lane]] = {}
        try:
            for device in range(num_devices):
                bound = None if cpus is None else {cpus[device]}
                self.devices.append(Lane(f"doppler-device-{device}", bound))
            for lane in self.devices:
                lane.wait_until_ready()
        except BaseException:  # Ctrl-C included: nobody would stop these threads later
            self.stop(timeout=1.0)
            raise

    def prepare_link(self, link: int) -> None:
        """Starts the first lane of a link, before the clock runs."""
        if link not in self._link_lanes:
            self.idle[link] = [self._add_lane(link)]
            self.idle[link][0].wait_until_ready()

    def take_link_lane(self, link: int) -> Lane:
        """An idle lane of a link; the job must put it back into `idle[link]`."""
        idle = self.idle[link]
        return idle.pop() if idle else self._add_lane(link)

    def dead_devices(self) -> list[int]:
        """Devices whose thread has ended."""
        return [device for device, lane in enumerate(self.devices) if not lane.alive]

    def dead_links(self) -> list[int]:
        """Links with a thread that has ended."""
        return [
            link
            for link, lanes in self._link_lanes.items()
            if not all(lane.alive for lane in lanes)
        ]

    def stop(self, timeout: float) -> list[str]:
        """Ends all threads.

        Returns:
            Names of the lanes that were still inside a kernel after `timeout` seconds; these are
            daemon threads and end with their kernel.
        """
        lanes = self.devices + [lane for lanes in self._link_lanes.values() for lane in lanes]
        for lane in lanes:
            lane.stop()
        deadline = time.monotonic() + timeout
        return [lane.name for lane in lanes if not lane.join(max(0.0, deadline - time.monotonic()))]

    def _add_lane(self, link: int) -> Lane:
        lanes = self._link_lanes.setdefault(link, [])
        lane = Lane(f"doppler-link-{link}-{len(lanes)}", self._free_cpus)
        lanes.append(lane)
        return lane
