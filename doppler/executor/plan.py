"""What is known of a placed graph before it runs: tasks, transfers, priorities, readers.

See `doppler.executor.dispatcher` for how a plan is run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from doppler.errors import CapacityError, ConfigurationError, InvalidPlacementError
from doppler.graph import hop_depths
from doppler.problem import PlacementProblem
from doppler.schedule import Schedule
from doppler.schedule.networks import NETWORKS, link_channels
from doppler.schedule.schedule import EXECUTIONS
from doppler.simulator.simulator import CHOOSE_RULES, choose_ranks


def check_rules(network: str, choose: str, execution: str = "work_conserving") -> None:
    """Raises `ConfigurationError` if a network model, a choose rule or an execution is unknown."""
    for label, value, known in (
        ("network", network, NETWORKS),
        ("choose", choose, CHOOSE_RULES),
        ("execution", execution, EXECUTIONS),
    ):
        if value not in known:
            raise ConfigurationError(f"{label} {value!r} is unknown; known: {', '.join(known)}")


class OpTask:
    """Run one op on its device."""

    __slots__ = ("device", "op")

    def __init__(self, op: int, device: int) -> None:
        self.op = op
        self.device = device


class HopTask:
    """Move the output of `op`, on its way to device `target`, over one link.

    `source` and `destination` are endpoints (devices, then hosts); `position` counts the hops of a
    route and `last` says that the tensor arrives at `target`.
    """

    __slots__ = ("destination", "last", "link", "op", "position", "source", "target", "transfer")

    def __init__(self, transfer: Transfer, position: int, ends: tuple[int, int]) -> None:
        self.transfer = transfer
        self.op = transfer.op
        self.target = transfer.target
        self.position = position
        self.link = transfer.route[position]
        self.source, self.destination = ends
        self.last = position == len(transfer.route) - 1


class Transfer:
    """One tensor to one destination device, whatever the number of its consumers there."""

    __slots__ = ("consumers", "copy", "hops", "op", "rank", "route", "target")

    def __init__(
        self, op: int, target: int, copy: int, route: tuple[int, ...], link_ends: np.ndarray
    ) -> None:
        self.op = op
        self.target = target
        self.copy = copy
        self.route = route
        self.consumers: list[int] = []
        self.rank = 0.0
        self.hops = [
            HopTask(self, position, (int(link_ends[link, 0]), int(link_ends[link, 1])))
            for position, link in enumerate(route)
        ]


Task = OpTask | HopTask


class DispatchPlan:
    """What is known of a placed graph before it runs.

    A *copy* is a tensor on a device: copy `op` is the output of `op` on its own device, and every
    transfer has one more copy, at its destination.

    Args:
        problem: graph, topology and costs; the costs matter to `choose=b_level` only.
        devices: a device per op. # (num_ops,)
        order: the placement's order, needed under `choose=given`. # (num_ops,)
        network: one of `NETWORKS`.
        choose: one of `CHOOSE_RULES`.
        seed: of `choose=random`.
        keep: ops whose output stays on its own device to the end, because somebody reads it then.
        execution: one of `EXECUTIONS`.

    Attributes:
        input_ops: ops that stand for inputs: there from the start, they never run.
        levels: ops of each depth, ascending, of a bulk-synchronous run; else empty.

    Raises:
        ConfigurationError: unknown network, rule or execution.
        InvalidProblemError: inputs that are no ops yet (`PlacementProblem.with_explicit_inputs`).
        InvalidPlacementError: a placement or an order that does not fit or breaks the problem's
            constraints, or no order under `given`.
    """

    def __init__(
        self,
        problem: PlacementProblem,
        devices: object,
        order: object | None = None,
        *,
        network: str = "serial_links",
        choose: str = "fifo",
        seed: int = 0,
        keep: Iterable[int] = (),
        execution: str = "work_conserving",
    ) -> None:
        check_rules(network, choose, execution)
        problem.check_explicit()
        self.problem = problem
        self.network = network
        self.choose = choose
        self.execution = execution
        self.devices = problem.check_placement(devices)
        self.order = None if order is None else problem.check_order(order)
        self.ranks = self._op_ranks(seed)
        self.keep = frozenset(keep)
        self.channels = link_channels(problem.topology, network)
        self.links_of_channel: list[list[int]] = [
            [] for _ in range(1 + max((c for row in self.channels for c in row), default=-1))
        ]
        for link, channels in enumerate(self.channels):
            for channel in channels:
                self.links_of_channel[channel].append(link)
        self.input_ops: list[int] = np.flatnonzero(problem.is_input_op).tolist()
        self.levels: list[list[int]] = []
        if execution == "bulk_synchronous":
            depths = hop_depths(problem.graph)
            self.levels = [np.flatnonzero(depths == d).tolist() for d in range(depths.max() + 1)]
        self._connect()
        self._count_uses()

    def copy_place(self, copy: int) -> tuple[int, int]:
        """(op, device) of a tensor copy."""
        if copy < self.num_ops:
            return copy, self.device_of[copy]
        transfer = self.transfers[copy - self.num_ops]
        return transfer.op, transfer.target

    def describe(self, task: Task, kernel: str | None = None) -> str:
        """Names an op with its device and, if given, its kernel, or a transfer with both ends."""
        topology, name = self.problem.topology, self.problem.graph.op_name(task.op)
        if isinstance(task, OpTask):
            device = topology.devices[task.device].name
            what = "" if kernel is None else f", kernel {kernel!r},"
            return f"op {task.op} ({name}){what} on device {task.device} ({device})"
        return (
            f"transfer of op {task.op} ({name}) from {topology.endpoint_name(task.source)} to "
            f"{topology.endpoint_name(task.destination)}"
        )

    def over_capacity(self, op: int, device: int, resident: float) -> CapacityError:
        """The error that the output of an op makes a device hold `resident` bytes."""
        problem = self.problem
        return CapacityError(
            f"problem {problem.name!r}: device {problem.topology.devices[device].name!r} would "
            f"hold {resident:.0f} B of {self.capacity[device]:.0f} B with the output of "
            f"op {op} ({problem.graph.op_name(op)})"
        )

    def schedule(
        self,
        start: np.ndarray,
        finish: np.ndarray,
        hops: Sequence[tuple[HopTask, float, float]],
        origin: str,
        peak_bytes: np.ndarray | None,
    ) -> Schedule:
        """The schedule of a run of this plan.

        Args:
            start: # (num_ops,) [s]
            finish: # (num_ops,) [s]
            hops: (hop, start, finish) in any order. # (num_hops,) [s]
            origin: one of `doppler.schedule.ORIGINS`.
            peak_bytes: see `Dispatcher.peak_bytes`.
        """
        times = np.array([(begin, end) for _, begin, end in hops]).reshape(-1, 2)
        return Schedule(
            problem=self.problem,
            devices=self.devices,
            start=start,
            finish=finish,
            transfer_ops=np.array([hop.op for hop, _, _ in hops], np.int64),
            transfer_targets=np.array([hop.target for hop, _, _ in hops], np.int64),
            transfer_links=np.array([hop.link for hop, _, _ in hops], np.int64),
            transfer_start=times[:, 0],
            transfer_finish=times[:, 1],
            network=self.network,
            choose=self.choose,
            order=self.order,
            origin=origin,
            peak_bytes=peak_bytes,
            execution=self.execution,
        )

    def _op_ranks(self, seed: int) -> list[float] | None:
        """Priority of each op, most urgent lowest; None under `fifo`, where time decides."""
        if self.choose == "fifo":
            return None
        if self.choose != "given":
            return choose_ranks(self.problem, self.choose, seed).tolist()
        if self.order is None:
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}: choose=given needs a placement with an order"
            )
        ranks = np.empty(self.problem.num_ops)
        ranks[self.order] = np.arange(self.problem.num_ops)
        return ranks.tolist()

    def _connect(self) -> None:
        """Splits every op's consumers into local ones and one transfer per other device."""
        graph, topology = self.problem.graph, self.problem.topology
        self.num_ops = graph.num_ops
        self.device_of: list[int] = self.devices.tolist()
        self.missing: list[int] = graph.in_degrees.tolist()
        self.op_tasks = [OpTask(op, device) for op, device in enumerate(self.device_of)]
        self.local_consumers: list[list[int]] = [[] for _ in range(self.num_ops)]
        self.outgoing: list[list[Transfer]] = [[] for _ in range(self.num_ops)]
        self.transfers: list[Transfer] = []
        self.consumed_copies: list[list[int]] = [[] for _ in range(self.num_ops)]
        for op, source in enumerate(self.device_of):
            by_target: dict[int, Transfer] = {}
            for consumer in graph.successors(op).tolist():
                target = self.device_of[consumer]
                if target == source:
                    self.local_consumers[op].append(consumer)
                    self.consumed_copies[consumer].append(op)
                    continue
                if target not in by_target:
                    copy = self.num_ops + len(self.transfers)
                    route = topology.routes[source][target]
                    by_target[target] = Transfer(op, target, copy, route, topology.link_ends)
                    self.transfers.append(by_target[target])
                by_target[target].consumers.append(consumer)
                self.consumed_copies[consumer].append(by_target[target].copy)
            self.outgoing[op] = [by_target[target] for target in sorted(by_target)]
        if self.ranks is not None:
            for transfer in self.transfers:
                transfer.rank = min(self.ranks[consumer] for consumer in transfer.consumers)

    def _count_uses(self) -> None:
        """How many readers each copy has; it is freed when the last of them is done.

        Outputs that serve nobody are results and stay.
        """
        self.uses = [
            len(local) + len(outgoing)
            for local, outgoing in zip(self.local_consumers, self.outgoing, strict=True)
        ]
        self.uses += [len(transfer.consumers) for transfer in self.transfers]
        for op in self.keep:
            self.uses[op] += 1
        graph = self.problem.graph
        self.output_bytes = [] if graph.output_bytes is None else graph.output_bytes.tolist()
        self.capacity: list[float] = self.problem.topology.memory_bytes.tolist()
