"""The plan that grows op by op: when tensors arrive, where there is a gap, what fits in memory.

In every kernel `m` is a `PlanningModel` and `s` a `PlanState`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.schedulers.lists.model import PlanningModel
from doppler.simulator.jit import compiled, inlined

UNLIMITED, LIVE, KEPT = range(3)
"""Memory that a plan respects: none; outputs until their last consumer is planned; all for ever."""


class PlanState(NamedTuple):
    """A partial plan. A lane is one compute slot of a device; its ops are linked in time order."""

    devices: np.ndarray  # (N,) -1 where unplanned
    start: np.ndarray  # (N,) [s]
    finish: np.ndarray  # (N,) [s]
    arrival: np.ndarray  # (N, D) when all planned inputs of an op can be on a device [s]
    missing: np.ndarray  # (N,) predecessors, inputs aside, that are not planned yet
    earlier: np.ndarray  # (N,) op before it in its lane, or -1
    later: np.ndarray  # (N,) op after it in its lane, or -1
    lane_ptr: np.ndarray  # (D + 1,)
    head: np.ndarray  # (lanes,) first op, or -1
    tail: np.ndarray  # (lanes,) last op, or -1
    packed: np.ndarray  # (lanes,) last op before which the lane is never idle, or -1
    block_device: np.ndarray  # (B,) -1 where still open
    memory: int  # UNLIMITED, LIVE or KEPT
    used: np.ndarray  # (D,) estimate of what is resident [B]
    resident: np.ndarray  # (N, D) bool: whose outputs these are; (1, 1) if UNLIMITED
    unread: np.ndarray  # (N,) consumers that are not planned yet
    block_bytes: np.ndarray  # (B,) outputs of each block's ops [B]


def make_state(m: PlanningModel, memory: int) -> PlanState:
    """An empty plan, in which the pinned blocks have their devices; `begin` does the rest."""
    n, d = m.num_ops, m.num_devices
    lane_ptr = np.concatenate([np.zeros(1, np.int64), np.cumsum(m.slots)])
    lanes = int(lane_ptr[-1])
    consumers = np.repeat(np.arange(n), np.diff(m.pred_ptr))
    members = m.block >= 0
    return PlanState(
        devices=np.full(n, -1, np.int64),
        start=np.zeros(n),
        finish=np.zeros(n),
        arrival=np.zeros((n, d)),
        missing=np.bincount(consumers[~m.is_input[m.pred_ops]], minlength=n),
        earlier=np.full(n, -1, np.int64),
        later=np.full(n, -1, np.int64),
        lane_ptr=lane_ptr,
        head=np.full(lanes, -1, np.int64),
        tail=np.full(lanes, -1, np.int64),
        packed=np.full(lanes, -1, np.int64),
        block_device=np.full(len(m.block_device), -1, np.int64),
        memory=memory,
        used=np.zeros(d),
        resident=np.zeros((1, 1) if memory == UNLIMITED else (n, d), bool),
        unread=np.diff(m.succ_ptr),
        block_bytes=np.bincount(
            m.block[members], m.output_bytes[members], minlength=len(m.block_device)
        ).astype(np.float64),
    )


@compiled
def begin(m: PlanningModel, s: PlanState) -> None:
    """Decides the pinned blocks."""
    for block in range(len(s.block_device)):
        if m.block_device[block] >= 0:
            _decide(m, s, block, m.block_device[block])


@compiled
def end(m: PlanningModel, s: PlanState) -> None:
    """Inputs that nothing reads go to device 0."""
    for block in range(len(s.block_device)):
        if s.block_device[block] < 0:
            _decide(m, s, block, 0)


@compiled
def _send(m: PlanningModel, s: PlanState, op: int) -> None:
    """Lets the output of a planned op arrive at its consumers, wherever they may go."""
    home = s.devices[op]
    for edge in range(m.succ_ptr[op], m.succ_ptr[op + 1]):
        consumer = m.succ_ops[edge]
        for device in range(s.arrival.shape[1]):
            seconds = m.latency[home, device] + m.volume[edge] * m.rate[home, device]
            s.arrival[consumer, device] = max(s.arrival[consumer, device], s.finish[op] + seconds)


@compiled
def _decide(m: PlanningModel, s: PlanState, block: int, device: int) -> None:
    """Gives a block its device; its inputs are there from time 0."""
    s.block_device[block] = device
    if s.memory == KEPT:
        s.used[device] += s.block_bytes[block]
    for row in range(m.block_input_ptr[block], m.block_input_ptr[block + 1]):
        op = m.block_inputs[row]
        s.devices[op] = device
        _send(m, s, op)
        if s.memory != UNLIMITED:
            s.resident[op, device] = True
        if s.memory == LIVE:
            s.used[device] += m.output_bytes[op]


@inlined
def _gap(
    s: PlanState, lane: int, arrival: float, seconds: float, insertion: bool
) -> tuple[float, int]:
    """The first start in a lane at which an op fits, and the op after which that is (-1: none)."""
    op = s.tail[lane]
    if op < 0:
        return arrival, op
    if not insertion:
        return max(arrival, s.finish[op]), op
    # Nothing but an op without duration could go between packed ops.
    while op >= 0 and s.finish[op] > arrival and (op != s.packed[lane] or seconds == 0.0):
        op = s.earlier[op]
    start = arrival if op < 0 else max(arrival, s.finish[op])
    following = s.head[lane] if op < 0 else s.later[op]
    while following >= 0 and start + seconds > s.start[following]:
        op = following
        start = max(start, s.finish[op])
        following = s.later[op]
    return start, op


@inlined
def start_on(m: PlanningModel, s: PlanState, op: int, device: int, insertion: bool) -> float:
    """Earliest start of an op on a device."""
    best = np.inf
    for lane in range(s.lane_ptr[device], s.lane_ptr[device + 1]):
        start, _ = _gap(s, lane, s.arrival[op, device], m.op_seconds[op, device], insertion)
        best = min(best, start)
    return best


@compiled
def _occupy(m: PlanningModel, s: PlanState, op: int, device: int, insertion: bool) -> None:
    """Puts an op into the lane where it starts first, ties to the lower lane."""
    seconds = m.op_seconds[op, device]
    chosen, start, previous = -1, np.inf, -1
    for lane in range(s.lane_ptr[device], s.lane_ptr[device + 1]):
        found, after = _gap(s, lane, s.arrival[op, device], seconds, insertion)
        if chosen < 0 or found < start:
            chosen, start, previous = lane, found, after
    s.devices[op] = device
    s.start[op] = start
    s.finish[op] = start + seconds
    following = s.head[chosen] if previous < 0 else s.later[previous]
    s.earlier[op], s.later[op] = previous, following
    if previous < 0:
        s.head[chosen] = op
    else:
        s.later[previous] = op
    if following < 0:
        s.tail[chosen] = op
    else:
        s.earlier[following] = op
    last = s.packed[chosen]
    while True:
        following = s.head[chosen] if last < 0 else s.later[last]
        busy_until = 0.0 if last < 0 else s.finish[last]
        if following < 0 or s.start[following] > busy_until:
            break
        last = following
    s.packed[chosen] = last


@compiled
def commit(m: PlanningModel, s: PlanState, op: int, device: int, insertion: bool) -> bool:
    """Plans an op on a device; says whether that decided a block.

    An input that could be anywhere goes where its first consumer goes.
    """
    decided = False
    block = m.block[op]
    if block >= 0 and s.block_device[block] < 0:
        _decide(m, s, block, device)
        decided = True
    for row in range(m.pred_ptr[op], m.pred_ptr[op + 1]):
        pred = m.pred_ops[row]
        if s.devices[pred] < 0:
            _decide(m, s, m.block[pred], device)
            decided = True
    _occupy(m, s, op, device, insertion)
    _send(m, s, op)
    for edge in range(m.succ_ptr[op], m.succ_ptr[op + 1]):
        s.missing[m.succ_ops[edge]] -= 1
    if s.memory != UNLIMITED:
        _remember(m, s, op, device)
    return decided


@compiled
def _remember(m: PlanningModel, s: PlanState, op: int, device: int) -> None:
    """Counts a planned op's output and its inputs' copies; frees what nobody will read."""
    if s.memory == LIVE or m.block[op] < 0:
        s.used[device] += m.output_bytes[op]
    s.resident[op, device] = True
    for row in range(m.pred_ptr[op], m.pred_ptr[op + 1]):
        pred = m.pred_ops[row]
        if not s.resident[pred, device]:
            s.resident[pred, device] = True
            s.used[device] += m.output_bytes[pred]
    if s.memory == KEPT:
        return
    for row in range(m.pred_ptr[op], m.pred_ptr[op + 1]):
        pred = m.pred_ops[row]
        s.unread[pred] -= 1
        if s.unread[pred] == 0:
            for place in range(len(s.used)):
                if s.resident[pred, place]:
                    s.used[place] -= m.output_bytes[pred]


@compiled
def _room(m: PlanningModel, s: PlanState, op: int, device: int) -> float:
    """Bytes that would be left on a device with an op, negative where it does not fit."""
    block = m.block[op]
    more = m.output_bytes[op]
    if s.memory == KEPT and block >= 0:
        more = s.block_bytes[block] if s.block_device[block] < 0 else 0.0
    for row in range(m.pred_ptr[op], m.pred_ptr[op + 1]):
        pred = m.pred_ops[row]
        if s.devices[pred] >= 0:
            if not s.resident[pred, device]:
                more += m.output_bytes[pred]
        elif s.memory == LIVE:
            more += m.output_bytes[pred]
        elif m.block[pred] != block:
            more += s.block_bytes[m.block[pred]]
    return m.capacity[device] - s.used[device] - more


@inlined
def allowed(m: PlanningModel, s: PlanState, op: int, device: int) -> bool:
    """Whether pins and groups let an op go on a device."""
    block = m.block[op]
    return block < 0 or s.block_device[block] < 0 or s.block_device[block] == device


@inlined
def usable(m: PlanningModel, s: PlanState, op: int, device: int) -> bool:
    """Whether an op may go on a device, and fits there."""
    if not allowed(m, s, op, device):
        return False
    return s.memory == UNLIMITED or _room(m, s, op, device) >= 0.0


@compiled
def roomiest(m: PlanningModel, s: PlanState, op: int) -> int:
    """The allowed device on which most memory is left, for an op that fits nowhere."""
    best, most = -1, -np.inf
    for device in range(len(m.capacity)):
        if allowed(m, s, op, device):
            room = _room(m, s, op, device)
            if best < 0 or room > most:
                best, most = device, room
    return best
