"""The process of a rank: it obeys the driver until the driver closes the connection.

Run as a module this is the nursery of a `LocalFleet`: it imports everything once, then forks ranks
on request, so that new ranks after a fault cost a fraction of a second. It owns the ranks, kills
and reaps them, and ends them all when the driver's end of its socket closes, however that came.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import pickle
import platform
import shutil
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from doppler.executor.distributed.rank_clock import align_clocks
from doppler.executor.distributed.rank_run import Rank, RankFailure, RankRun, RankTrace
from doppler.executor.plan import DispatchPlan

MOST_RANKS = 200
"""More connections than that do not fit into one message to the nursery."""
STOP_SECONDS = 5.0
"""How long the end of a rank waits for its threads. [s]"""
GONE_SECONDS = 2.0
"""How long a rank that closed its connection may take to be dead. [s]"""
_NEVER = timedelta(days=365)
"""The driver decides when a run has taken too long, not the transport."""


class RankServer:
    """Obeys the driver: (command, payload) comes in, (kind, payload) goes back.

    Args:
        connection: to the driver.
        group: process group of all ranks.
        status: see `Rank`. # (world,)
    """

    def __init__(
        self, connection: Connection, group: dist.ProcessGroup, status: np.ndarray
    ) -> None:
        self._connection = connection
        self._group = group
        self._status = status
        self._sending = threading.Lock()
        self._rank: Rank | None = None
        self._run: RankRun | None = None
        self._problem: Any = None

    def serve(self) -> None:
        """Returns when the driver says stop or closes the connection."""
        self._send("hello", {"host": platform.node(), "process": os.getpid()})
        while True:
            try:
                message = self._connection.recv_bytes()
            except (EOFError, OSError):
                break
            try:
                command, payload = pickle.loads(message)
                if command == "stop":
                    break
                getattr(self, f"_do_{command}")(payload)
            except Exception as error:
                where = f"device {self._group.rank()}, rank {self._group.rank()}"
                text = f"{where}, getting ready failed: {type(error).__name__}: {error}"
                details = "".join(traceback.format_exception(error))
                self._report(RankFailure(self._group.rank(), text, "setup", details))
        if self._rank is not None:
            self._rank.stop(STOP_SECONDS)

    def _do_setup(self, payload: dict[str, Any]) -> None:
        self._rank = Rank(payload["workload"], payload["input_seed"], self._group, self._status)
        self._send("ready", None)

    def _do_prepare(self, payload: dict[str, Any]) -> None:
        """Gets a run ready; a run begins on all ranks together only when all are ready."""
        assert self._rank is not None
        if payload["problem"] is not None:
            self._problem = payload["problem"]
        if payload["renew_inputs"]:
            self._rank.renew_inputs()
        plan = DispatchPlan(self._problem, **payload["plan"])
        self._run = RankRun(self._rank, plan, payload["keep_outputs"], self._report)
        offsets = align_clocks(self._group) if payload["align"] else None
        gc.collect()
        gc.freeze()  # the next collection need not look at what has survived this one
        gc.disable()
        self._send("prepared", offsets)

    def _do_go(self, payload: None) -> None:
        assert self._run is not None
        self._run.begin()

    def _do_state(self, payload: None) -> None:
        self._send("state", "nothing" if self._run is None else self._run.state())

    def _report(self, result: RankTrace | RankFailure) -> None:
        self._send("trace" if isinstance(result, RankTrace) else "failure", result)

    def _send(self, kind: str, payload: Any) -> None:
        # Without a driver there is nobody to tell, and the process is about to end.
        with self._sending, contextlib.suppress(OSError):
            # Not `send`: torch teaches it to pass tensors as shared memory, which needs more than
            # this one connection.
            self._connection.send_bytes(pickle.dumps((kind, payload)))


def loopback_interface() -> str | None:
    """Name of the interface for processes of one machine."""
    names = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    return names[0] if names else None


def _rank_main(rank: int, connection: Connection, request: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    interface = loopback_interface()
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    world = request["world"]
    store = dist.FileStore(request["store"], world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=_NEVER)
    group = dist.group.WORLD
    assert group is not None
    status = np.memmap(request["status"], dtype=np.int64, mode="r+", shape=(world,))
    RankServer(connection, group, status).serve()


def _fork_ranks(
    nursery: socket.socket, request: dict[str, Any], handles: Sequence[int]
) -> dict[int, int]:
    """Forks one process per rank; rank r talks to the driver over `handles[r]`.

    Returns:
        Process id by rank.
    """
    processes = {}
    for rank in range(request["world"]):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                nursery.close()
                for other, handle in enumerate(handles):
                    if other != rank:
                        os.close(handle)
                _rank_main(rank, Connection(handles[rank]), request)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)  # not into the nursery's loop, and not through its exit handlers
        processes[rank] = pid
    for handle in handles:
        os.close(handle)
    return processes


def _end_ranks(processes: dict[int, int], gone: Sequence[int] = ()) -> dict[int, str]:
    """Kills and reaps all ranks; tells of those that had died before how.

    Args:
        processes: process id by rank.
        gone: ranks whose connection has closed: they may need a moment more to be dead.
    """
    deaths = {}
    deadline = time.monotonic() + GONE_SECONDS
    for rank, pid in processes.items():
        done, status = os.waitpid(pid, os.WNOHANG)
        while not done and rank in gone and time.monotonic() < deadline:
            time.sleep(0.002)
            done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            deaths[rank] = f"status {code}" if code >= 0 else signal.Signals(-code).name
        else:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return deaths


def nursery_main(handle: int, folder: str) -> None:
    """Forks and ends ranks as asked over a socket, until its other end closes.

    Then it removes the fleet's folder too, for a driver that was killed cannot.

    Requests are JSON: {"command": "fork", "world", "store", "status"} with one connection per rank
    attached, answered by the process ids; {"command": "end", "gone"}, answered by who had died
    before and how.
    """
    nursery = socket.socket(fileno=handle)
    processes: dict[int, int] = {}
    while True:
        message, handles, _, _ = socket.recv_fds(nursery, 65536, MOST_RANKS)
        if not message:
            _end_ranks(processes)
            shutil.rmtree(folder, ignore_errors=True)
            return
        request = json.loads(message)
        if request["command"] == "fork":
            processes = _fork_ranks(nursery, request, handles)
            answer: dict[int, Any] = dict(processes)
        else:
            answer, processes = dict(_end_ranks(processes, request["gone"])), {}
        # The driver may have gone while we worked: the next read tells.
        with contextlib.suppress(OSError):
            nursery.sendall(json.dumps(answer).encode() + b"\n")


if __name__ == "__main__":
    nursery_main(int(sys.argv[1]), sys.argv[2])
    os._exit(0)  # nothing is left to do, and the end of an interpreter with torch takes a while
