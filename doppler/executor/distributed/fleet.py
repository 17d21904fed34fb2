"""The processes of a distributed executor: started here, or joined by torchrun."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener, Pipe, wait
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from doppler.errors import ConfigurationError, ExecutionError
from doppler.executor.distributed.rank_process import MOST_RANKS, RankServer

START_SECONDS = 120.0
"""How long ranks may take to start and to find one another. [s]"""


def check_gloo() -> None:
    """Raises `ConfigurationError` if this torch cannot do what the executor needs."""
    if not (dist.is_available() and dist.is_gloo_available()):
        raise ConfigurationError(
            f"executor=distributed needs torch.distributed with gloo, torch {torch.__version__} "
            "has none: use executor=cpu"
        )


class Fleet(ABC):
    """The ranks of one executor and the connections to them.

    Attributes:
        connections: to each rank, empty while there are none. # (world,)
        ranks: host and process of each rank. # (world,)
    """

    def __init__(self, world: int) -> None:
        self.world = world
        self.connections: list[Connection] = []
        self.ranks: list[dict[str, Any]] = []

    @abstractmethod
    def start(self) -> None:
        """Starts all ranks and waits until they have found one another.

        Raises:
            ExecutionError: they cannot, or not in time.
        """

    @abstractmethod
    def stop(self, gone: Sequence[int] = ()) -> dict[int, str]:
        """Ends all ranks at once; tells of those that had died before how.

        Args:
            gone: ranks that are known to have died.
        """

    @abstractmethod
    def close(self) -> None:
        """Ends all ranks and gives everything back."""

    def running_op(self, rank: int) -> int | None:
        """The op that a rank is or was running, where this can be known from outside."""
        return None

    def is_whole(self) -> bool:
        """Whether no rank has gone; none says anything between two runs unless it has."""
        return bool(self.connections) and not wait(self.connections, 0)

    def _greet(self) -> None:
        """Waits for the first word of every rank."""
        deadline = time.monotonic() + START_SECONDS
        self.ranks = [{} for _ in self.connections]
        for rank, connection in enumerate(self.connections):
            try:
                if not connection.poll(max(0.0, deadline - time.monotonic())):
                    raise ExecutionError(f"rank {rank} did not start in {START_SECONDS:g} s")
                self.ranks[rank] = pickle.loads(connection.recv_bytes())[1]
            except (EOFError, OSError):
                raise ExecutionError(f"rank {rank} died while it started") from None


class LocalFleet(Fleet):
    """Processes on this machine, forked by one helper process that we start and end.

    They are in a session of their own, so that Ctrl-C reaches this process only, which then ends
    them; and they end by themselves when this process is gone, whatever ended it.
    """

    def __init__(self, world: int) -> None:
        super().__init__(world)
        check_gloo()
        if not hasattr(os, "fork"):
            raise ConfigurationError(
                "executor=distributed starts processes with fork: use torchrun"
            )
        if world > MOST_RANKS:
            raise ConfigurationError(
                f"executor=distributed, num_devices: {world} processes on one machine, "
                f"{MOST_RANKS} are possible"
            )
        self._generation = 0
        self._folder: Path | None = None
        self._nursery: socket.socket | None = None
        self._status: np.ndarray | None = None
        self._finalizer: weakref.finalize | None = None

    @property
    def processes(self) -> list[int]:
        """Process id of each rank. # (world,)"""
        return [rank["process"] for rank in self.ranks]

    def start(self) -> None:
        if self._nursery is None:
            self._open_nursery()
        assert self._folder is not None and self._nursery is not None
        self._generation += 1
        status = self._folder / f"status-{self._generation}"
        np.full(self.world, -1, np.int64).tofile(status)
        self._status = np.memmap(status, dtype=np.int64, mode="r", shape=(self.world,))
        store = str(self._folder / f"store-{self._generation}")
        pipes = [Pipe() for _ in range(self.world)]
        self.connections = [ours for ours, _ in pipes]
        request = {"command": "fork", "world": self.world, "store": store, "status": str(status)}
        try:
            self._ask(request, [theirs.fileno() for _, theirs in pipes])
            for _, theirs in pipes:
                theirs.close()
            self._greet()
        except BaseException as error:
            log = self._log()
            self.close()
            if isinstance(error, ExecutionError) and log:
                error.add_note(log)
            raise

    def stop(self, gone: Sequence[int] = ()) -> dict[int, str]:
        for connection in self.connections:
            connection.close()
        self.connections = []
        if self._nursery is None:
            return {}
        try:
            answer = self._ask({"command": "end", "gone": list(gone)})
        except ExecutionError:
            return {}
        return {int(rank): how for rank, how in answer.items()}

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.connections = []
        self._nursery = self._status = None
        if self._finalizer is not None:
            self._finalizer()

    def running_op(self, rank: int) -> int | None:
        if self._status is None or self._status[rank] < 0:
            return None
        return int(self._status[rank])

    def _open_nursery(self) -> None:
        folder = Path(tempfile.mkdtemp(prefix="doppler-ranks-"))
        ours, theirs = socket.socketpair()
        path = [entry or os.getcwd() for entry in sys.path]  # what we can import, ranks can too
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "doppler.executor.distributed.rank_process"),
                    *(str(theirs.fileno()), str(folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
                start_new_session=True,
            )
        theirs.close()
        self._folder, self._nursery = folder, ours
        # Also at the end of the interpreter and when nobody holds the executor any more.
        self._finalizer = weakref.finalize(self, _end_nursery, process, ours, folder)

    def _ask(self, request: dict[str, Any], handles: list[int] | None = None) -> dict[str, Any]:
        """Sends the nursery a request and returns its answer.

        Raises:
            ExecutionError: the nursery has died or takes too long.
        """
        assert self._nursery is not None
        message = json.dumps(request).encode()
        answer = b""
        try:
            self._nursery.settimeout(START_SECONDS)
            socket.send_fds(self._nursery, [message], handles or [])
            while not answer.endswith(b"\n"):
                part = self._nursery.recv(65536)
                if not part:
                    raise ExecutionError("the process that starts the ranks has died")
                answer += part
        except OSError as error:
            self.close()
            raise ExecutionError(f"the process that starts the ranks: {error}") from error
        except BaseException:  # Ctrl-C: the answer to this would be taken for that to the next
            self.close()
            raise
        found: dict[str, Any] = json.loads(answer)
        return found

    def _log(self) -> str:
        if self._folder is None:
            return ""
        with contextlib.suppress(OSError):
            return (self._folder / "log").read_text(encoding="utf-8", errors="replace")[-2000:]
        return ""


def _end_nursery(process: subprocess.Popen[bytes], link: socket.socket, folder: Path) -> None:
    """Closing the socket makes the nursery end its ranks and then itself."""
    link.close()
    try:
        process.wait(10.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)


class JoinedFleet(Fleet):
    """The processes that torchrun started, this one, of rank 0, among them.

    The other ranks call `serve_joined`. There is no second start: whoever started the processes
    has to start them again.
    """

    def __init__(self) -> None:
        super().__init__(dist.get_world_size())
        self._used = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._used:
            raise ExecutionError(
                "the ranks have ended with an earlier run and cannot be started from here: start "
                "the command again"
            )
        self._used = True
        key = secrets.token_bytes(32)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        with Listener((host, 0), backlog=self.world, authkey=key) as listener:
            dist.broadcast_object_list([listener.address, key], src=0)
            self._thread = threading.Thread(
                target=_serve_at, args=(listener.address, key), daemon=True
            )
            self._thread.start()
            found: dict[int, Connection] = {}
            while len(found) < self.world:
                connection = listener.accept()
                _send_at_once(connection)
                found[connection.recv()] = connection
        self.connections = [found[rank] for rank in range(self.world)]
        self._greet()

    def stop(self, gone: Sequence[int] = ()) -> dict[int, str]:
        for connection in self.connections:
            connection.close()
        self.connections = []
        return {}

    def close(self) -> None:
        self._used = True
        self.stop()
        if self._thread is not None:
            self._thread.join(10.0)


def serve_joined() -> None:
    """What every rank but 0 of a torchrun does; returns when rank 0 has no more use for it."""
    found: list[Any] = [None, None]
    dist.broadcast_object_list(found, src=0)
    _serve_at(found[0], found[1])


def _serve_at(address: tuple[str, int], key: bytes) -> None:
    group = dist.group.WORLD
    assert group is not None
    with Client((address[0], address[1]), authkey=key) as connection:
        _send_at_once(connection)
        connection.send(group.rank())
        RankServer(connection, group, np.full(group.size(), -1, np.int64)).serve()


def _send_at_once(connection: Connection) -> None:
    """Lets no message wait for the acknowledgement of the one before it."""
    with socket.socket(fileno=os.dup(connection.fileno())) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
