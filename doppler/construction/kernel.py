"""Numba kernels of the construction: B partial schedules that grow op by op.

All loops over episodes are here. They are serial and release the GIL: one step of a batch takes
microseconds, which no thread pool repays, and without OpenMP the kernels survive the fork of a
process-based vector environment.

In every function `p` is a `ProblemArrays`, `s` a `StateArrays` and `b` an episode.
"""

from __future__ import annotations

import numpy as np

from doppler.construction.arrays import ProblemArrays, StateArrays
from doppler.simulator.jit import compiled, entry, inlined

NUM_DEVICE_FEATURES = 5
INSERTION_SORT_LIMIT = 32

OK = -1


@inlined
def _later(s: StateArrays, b: int, one: int, other: int) -> bool:
    """Whether op `one` finishes after op `other`, ties to the higher id."""
    if s.finish[b, one] != s.finish[b, other]:
        return s.finish[b, one] > s.finish[b, other]
    return one > other


@inlined
def _sift_down(s: StateArrays, b: int, root: int, size: int) -> None:
    heap = s.sorted_preds
    while 2 * root + 1 < size:
        child = 2 * root + 1
        if child + 1 < size and _later(s, b, heap[child + 1], heap[child]):
            child += 1
        if not _later(s, b, heap[child], heap[root]):
            break
        heap[root], heap[child] = heap[child], heap[root]
        root = child


@compiled
def _heap_sort(p: ProblemArrays, s: StateArrays, b: int, first: int, count: int) -> None:
    """Sorts many predecessors in place: compiled functions cannot allocate, as np.argsort would."""
    heap = s.sorted_preds
    for i in range(count):
        heap[i] = p.pred_ops[first + i]
    for root in range(count // 2 - 1, -1, -1):
        _sift_down(s, b, root, count)
    for size in range(count - 1, 0, -1):
        heap[0], heap[size] = heap[size], heap[0]
        _sift_down(s, b, 0, size)


@inlined
def _sort_predecessors(p: ProblemArrays, s: StateArrays, b: int, op: int) -> int:
    """Fills `sorted_preds` by (finish, id), as their transfers queue; returns how many."""
    first = p.pred_ptr[op]
    count = p.pred_ptr[op + 1] - first
    if count > INSERTION_SORT_LIMIT and p.contended:
        _heap_sort(p, s, b, first, count)
        return count
    for i in range(count):
        pred = p.pred_ops[first + i]
        j = i
        if p.contended:  # there the order does not matter
            while j > 0 and s.finish[b, s.sorted_preds[j - 1]] > s.finish[b, pred]:
                s.sorted_preds[j] = s.sorted_preds[j - 1]
                j -= 1
        s.sorted_preds[j] = pred
    return count


@inlined
def _known_arrival(p: ProblemArrays, s: StateArrays, b: int, op: int, device: int) -> float:
    """Arrival of an output that was already sent to `device`, else -1."""
    for row in range(p.arrival_ptr[op], p.arrival_ptr[op + 1]):
        if s.arrival_device[b, row] == device:
            return s.arrival_time[b, row]
        if s.arrival_device[b, row] < 0:
            break
    return -1.0


@inlined
def _remember_arrival(
    p: ProblemArrays, s: StateArrays, b: int, op: int, device: int, time: float
) -> None:
    for row in range(p.arrival_ptr[op], p.arrival_ptr[op + 1]):
        if s.arrival_device[b, row] < 0:
            s.arrival_device[b, row] = device
            s.arrival_time[b, row] = time
            return


@inlined
def _arrivals(
    p: ProblemArrays, s: StateArrays, b: int, device: int, count: int, commit: bool
) -> float:
    """When the last of the first `count` tensors of `sorted_preds` is on `device`.

    Transfers go hop by hop and wait for the channels of each link. Unless `commit`, the channels'
    free times are put back afterwards.
    """
    num_devices = p.op_seconds.shape[1]
    last = 0.0
    journal = 0
    for i in range(count):
        pred = s.sorted_preds[i]
        source = s.devices[b, pred]
        time = s.finish[b, pred]
        if source == device:
            last = max(last, time)
            continue
        if not p.contended:
            seconds = (
                p.route_latency[source, device] + p.volume[pred] * p.route_rate[source, device]
            )
            last = max(last, time + seconds)
            continue
        known = _known_arrival(p, s, b, pred, device)
        if known >= 0.0:
            last = max(last, known)
            continue
        route = source * num_devices + device
        for hop in range(p.route_ptr[route], p.route_ptr[route + 1]):
            link = p.route_links[hop]
            first, end = p.channel_ptr[link], p.channel_ptr[link + 1]
            for k in range(first, end):
                time = max(time, s.channel_free[b, p.channels[k]])
            time += p.link_latency[link] + p.volume[pred] * p.link_rate[link]
            for k in range(first, end):
                channel = p.channels[k]
                s.journal_index[journal] = channel
                s.journal_time[journal] = s.channel_free[b, channel]
                journal += 1
                s.channel_free[b, channel] = time
        if commit:
            _remember_arrival(p, s, b, pred, device, time)
        last = max(last, time)
    if not commit:
        for row in range(journal - 1, -1, -1):
            s.channel_free[b, s.journal_index[row]] = s.journal_time[row]
    return last


@inlined
def _allowed(p: ProblemArrays, s: StateArrays, b: int, op: int, device: int) -> bool:
    """Whether pins and groups let `op` go on `device`."""
    block = p.block[op]
    if block < 0:
        return True
    required = s.block_device[b, block]
    return required < 0 or required == device


@inlined
def _start_of(p: ProblemArrays, s: StateArrays, b: int, op: int, device: int, count: int) -> float:
    """Earliest start of an op whose `count` predecessors are in `sorted_preds`."""
    if p.is_input[op]:
        return 0.0
    return max(_arrivals(p, s, b, device, count, False), s.device_free[b, device])


@inlined
def _occupy_slot(s: StateArrays, b: int, device: int, inputs: float, seconds: float) -> float:
    """Takes the first free slot of a device once the inputs are there; returns the start."""
    slot = 0
    for k in range(1, s.slot_free.shape[2]):
        if s.slot_free[b, device, k] < s.slot_free[b, device, slot]:
            slot = k
    start = max(inputs, s.slot_free[b, device, slot])
    s.slot_free[b, device, slot] = start + seconds
    free = s.slot_free[b, device, 0]
    for k in range(1, s.slot_free.shape[2]):
        free = min(free, s.slot_free[b, device, k])
    s.device_free[b, device] = free
    return start


@inlined
def _place(p: ProblemArrays, s: StateArrays, b: int, op: int, device: int) -> None:
    """Commits one op: its transfers, its times, and the candidates that it makes."""
    count = _sort_predecessors(p, s, b, op)
    inputs = _arrivals(p, s, b, device, count, True)
    seconds = p.op_seconds[op, device]
    start = 0.0 if p.is_input[op] else _occupy_slot(s, b, device, inputs, seconds)
    if p.block[op] >= 0:
        s.block_device[b, p.block[op]] = device
    s.compute_placed[b, device] += seconds
    s.devices[b, op] = device
    s.start[b, op] = start
    s.finish[b, op] = start + seconds
    s.order[b, s.counts[b]] = op
    s.counts[b] += 1
    s.candidates[b, op] = False
    for edge in range(p.succ_ptr[op], p.succ_ptr[op + 1]):
        consumer = p.succ_ops[edge]
        s.missing[b, consumer] -= 1
        if s.missing[b, consumer] == 0:
            s.candidates[b, consumer] = True


@compiled
def _reset(p: ProblemArrays, s: StateArrays, compute_slots: np.ndarray, mask: np.ndarray) -> None:
    num_ops, num_devices = p.op_seconds.shape
    for b in range(len(mask)):
        if not mask[b]:
            continue
        s.devices[b] = -1
        s.start[b] = 0.0
        s.finish[b] = 0.0
        s.order[b] = -1
        s.counts[b] = 0
        s.device_free[b] = 0.0
        s.compute_placed[b] = 0.0
        s.channel_free[b] = 0.0
        s.arrival_device[b] = -1
        for block in range(len(p.block_device)):
            s.block_device[b, block] = p.block_device[block]
        for op in range(num_ops):
            s.missing[b, op] = p.pred_ptr[op + 1] - p.pred_ptr[op]
            s.candidates[b, op] = s.missing[b, op] == 0
        for device in range(num_devices):
            for k in range(s.slot_free.shape[2]):
                s.slot_free[b, device, k] = 0.0 if k < compute_slots[device] else np.inf


@compiled
def _first_illegal(p: ProblemArrays, s: StateArrays, ops: np.ndarray, devices: np.ndarray) -> int:
    """`devices` is empty where only the ops matter."""
    num_ops, num_devices = p.op_seconds.shape
    for b in range(len(ops)):
        if ops[b] == -1:
            continue
        if ops[b] < 0 or ops[b] >= num_ops or not s.candidates[b, ops[b]]:
            return b
        if len(devices) == 0:
            continue
        if devices[b] < 0 or devices[b] >= num_devices:
            return b
        if not _allowed(p, s, b, ops[b], devices[b]):
            return b
    return OK


@compiled
def _step(p: ProblemArrays, s: StateArrays, ops: np.ndarray, devices: np.ndarray) -> None:
    for b in range(len(ops)):
        if ops[b] >= 0:
            _place(p, s, b, ops[b], devices[b])


@compiled
def _earliest_starts(p: ProblemArrays, s: StateArrays, ops: np.ndarray, out: np.ndarray) -> None:
    for b in range(len(ops)):
        if ops[b] < 0:
            out[b] = 0.0
            continue
        count = _sort_predecessors(p, s, b, ops[b])
        for device in range(out.shape[1]):
            out[b, device] = _start_of(p, s, b, ops[b], device, count)


@inlined
def _describe(p: ProblemArrays, s: StateArrays, b: int, op: int, out: np.ndarray, row: int) -> None:
    """The five features of placing `op` on each device, in `out[row]` (D, 5)."""
    num_devices = out.shape[1]
    for device in range(num_devices):
        for k in range(NUM_DEVICE_FEATURES):
            out[row, device, k] = 0.0
        out[row, device, 2] = np.inf
    count = _sort_predecessors(p, s, b, op)
    for i in range(count):
        pred = s.sorted_preds[i]
        device = s.devices[b, pred]
        out[row, device, 2] = min(out[row, device, 2], s.start[b, pred])
        out[row, device, 1] += p.op_seconds[pred, device]
        out[row, device, 3] = max(out[row, device, 3], s.finish[b, pred])
    for device in range(num_devices):
        out[row, device, 0] = s.compute_placed[b, device]
        if out[row, device, 2] == np.inf:
            out[row, device, 2] = 0.0
        out[row, device, 4] = _start_of(p, s, b, op, device, count)


@compiled
def _device_features(p: ProblemArrays, s: StateArrays, ops: np.ndarray, out: np.ndarray) -> None:
    for b in range(len(ops)):
        if ops[b] < 0:
            out[b] = 0.0
        else:
            _describe(p, s, b, ops[b], out, b)


@compiled
def _candidate_earliest_starts(p: ProblemArrays, s: StateArrays, out: np.ndarray) -> None:
    num_devices = p.op_seconds.shape[1]
    for b in range(out.shape[0]):
        for op in range(out.shape[1]):
            best = np.inf
            if s.candidates[b, op]:
                count = _sort_predecessors(p, s, b, op)
                for device in range(num_devices):
                    if s.device_free[b, device] >= best and not p.is_input[op]:
                        continue
                    if _allowed(p, s, b, op, device):
                        best = min(best, _start_of(p, s, b, op, device, count))
            out[b, op] = best


@compiled
def _candidate_device_starts(p: ProblemArrays, s: StateArrays, out: np.ndarray) -> None:
    for b in range(out.shape[0]):
        for op in range(out.shape[1]):
            if not s.candidates[b, op]:
                for device in range(out.shape[2]):
                    out[b, op, device] = 0.0
                continue
            count = _sort_predecessors(p, s, b, op)
            for device in range(out.shape[2]):
                out[b, op, device] = _start_of(p, s, b, op, device, count)


@entry
def reset(p: ProblemArrays, s: StateArrays, compute_slots: np.ndarray, mask: np.ndarray) -> None:
    """Empties the episodes of `mask` (B,)."""
    _reset(p, s, compute_slots, mask)


@entry
def first_illegal(p: ProblemArrays, s: StateArrays, ops: np.ndarray, devices: np.ndarray) -> int:
    """First episode whose (op, device) may not be placed now, or -1; with no devices, whose op.

    Op -1 leaves an episode be.
    """
    return _first_illegal(p, s, ops, devices)


@entry
def step(p: ProblemArrays, s: StateArrays, ops: np.ndarray, devices: np.ndarray) -> None:
    """Places op `ops[b]` on `devices[b]` in every episode with an op other than -1."""
    _step(p, s, ops, devices)


@entry
def earliest_starts(p: ProblemArrays, s: StateArrays, ops: np.ndarray, out: np.ndarray) -> None:
    """Fills `out` (B, D) with the start of each episode's op on each device, 0 for op -1."""
    _earliest_starts(p, s, ops, out)


@entry
def device_features(p: ProblemArrays, s: StateArrays, ops: np.ndarray, out: np.ndarray) -> None:
    """Fills `out` (B, D, 5); see `Construction.device_features`."""
    _device_features(p, s, ops, out)


@entry
def candidate_earliest_starts(p: ProblemArrays, s: StateArrays, out: np.ndarray) -> None:
    """Fills `out` (B, N) with each candidate's start where it may go, infinite elsewhere."""
    _candidate_earliest_starts(p, s, out)


@entry
def candidate_device_starts(p: ProblemArrays, s: StateArrays, out: np.ndarray) -> None:
    """Fills `out` (B, N, D) with the start of each candidate on each device, 0 elsewhere."""
    _candidate_device_starts(p, s, out)
