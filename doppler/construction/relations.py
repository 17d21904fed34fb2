"""What relates an op to the ops already placed on each device, kept up to date step by step.

Most ops of a sharded tensor program look alike to any message-passing encoder; what tells them
apart is whom they will meet. This file tracks, for a batch of growing placements, how much of the
inputs of every consumer (one level on, and two) already sits on each device, how much work of an
op's wave (the ops of equal depth) each device holds, and how far each consumer has got. All values
are shares or saturating ratios, so that they mean the same on every graph.
"""

from __future__ import annotations

import numpy as np

from doppler.graph import hop_depths
from doppler.problem import PlacementProblem
from doppler.simulator.jit import entry

PAPER_DEVICE_FEATURES = 5
DEVICE_FEATURES = (
    "compute_placed",
    "predecessor_compute",
    "predecessor_first_start",
    "predecessor_last_finish",
    "earliest_start",
    "relative_op_seconds",
    "start_behind_best",
    "finish_behind_best",
    "load_above_mean",
    "input_share",
    "co_producers",
    "co_producer_share",
    "second_co_producers",
    "second_co_producer_share",
    "wave_load",
    "empty",
)
"""Columns of `device_features`; the first five are those of the DOPPLER paper."""

OP_FEATURES = ("consumer_progress", "sibling_recency", "ready_recency", "start_behind_first")
"""Columns of the features that SEL sees of every candidate."""


Graph = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""succ_ptr, succ_ops, pred_ptr, pred_ops of a dataflow graph."""


class PlacementRelations:
    """Relations of a batch of partial placements of one problem.

    Args:
        problem: what is placed.
        batch_size: number of episodes that step together.
        scale: seconds that the paper's five device features are divided by (a lower bound). [s]
    """

    def __init__(self, problem: PlacementProblem, batch_size: int, scale: float) -> None:
        graph = problem.graph
        batch, ops, devices = batch_size, problem.num_ops, problem.num_devices
        self.problem = problem
        self.batch_size = batch_size
        self._scale = float(scale)
        self._op_scale = float(max(problem.mean_op_seconds.mean(), np.finfo(float).tiny))
        # Copies, because numba compiles the frozen originals as another, read-only type.
        self._graph: Graph = (
            np.array(graph.succ_ptr),
            np.array(graph.succ_ops),
            np.array(graph.pred_ptr),
            np.array(graph.pred_ops),
        )
        self._seconds = np.array(problem.cost_model.op_seconds)
        self._volume = np.array(problem.mean_transfer_seconds)
        self._depth = hop_depths(graph)
        fair = np.bincount(self._depth, weights=problem.mean_op_seconds) / devices
        self._wave_unit = np.where(fair > 0, 1.0 / np.maximum(fair, np.finfo(float).tiny), 0.0)
        self._device_of = np.full((batch, ops), -1, np.int64)
        self._inputs_on = np.zeros((batch, ops, devices))  # predecessors of each op per device
        self._second_on = np.zeros((batch, ops, devices))  # the same one level on, as shares
        self._wave_load = np.zeros((batch, len(fair), devices))  # [s]
        self._touched = np.full((batch, ops), -1, np.int64)  # step that last placed an input
        self._arrival = np.zeros((batch, ops, devices))  # placed inputs, links uncontended [s]
        self._latency = np.array(problem.route_latency)
        self._rate = np.array(problem.route_seconds_per_unit)
        self._transfer_volume = np.array(problem.cost_model.transfer_volume)
        self._steps = 0

    def reset(self) -> None:
        """Forgets everything placed."""
        self._device_of.fill(-1)
        self._inputs_on.fill(0.0)
        self._second_on.fill(0.0)
        self._wave_load.fill(0.0)
        self._touched.fill(-1)
        self._arrival.fill(0.0)
        self._steps = 0

    def step(self, ops: np.ndarray, devices: np.ndarray, finish: np.ndarray) -> None:
        """Takes in one placed op per episode; legality is the construction's business.

        Args:
            ops: # (batch_size,)
            devices: # (batch_size,)
            finish: `Construction.finish` after the step. # (batch_size, num_ops) [s]
        """
        _step(
            ops, devices, self._steps, self._graph, self._seconds, self._depth, self._device_of,
            self._inputs_on, self._second_on, self._wave_load, self._touched,
        )  # fmt: skip
        _arrive(
            ops, devices, finish, self._graph, self._latency, self._rate, self._transfer_volume,
            self._arrival,
        )  # fmt: skip
        self._steps += 1

    def device_features(self, ops: np.ndarray, times: np.ndarray, out: np.ndarray) -> None:
        """Writes the features of placing each episode's op on each device.

        Args:
            ops: chosen op per episode. # (batch_size,)
            times: `Construction.device_features(ops)`. # (batch_size, num_devices, 5) [s]
            out: gets the columns `DEVICE_FEATURES`, or the first five of them.
                # (batch_size, num_devices, 5 or 16) float32
        """
        if out.shape[2] == PAPER_DEVICE_FEATURES:
            out[:] = times / self._scale
            return
        _device_features(
            ops, times, 1.0 / self._scale, 1.0 / self._op_scale, self._graph, self._seconds,
            self._volume, self._depth, self._wave_unit, self._device_of, self._inputs_on,
            self._second_on, self._wave_load, out,
        )  # fmt: skip

    def candidates(
        self, mask: np.ndarray, device_free: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Lists the candidates of every episode with SEL's features.

        A candidate's earliest start leaves contention between transfers out: then only the
        devices' free times change from step to step, and a step costs a few comparisons each.

        Args:
            mask: True at candidates. # (batch_size, num_ops)
            device_free: `Construction.device_free`. # (batch_size, num_devices) [s]

        Returns:
            ids, ascending, padded with num_ops # (batch_size, most candidates) int64; the columns
            `OP_FEATURES` # (batch_size, most candidates, 4) float32; how many there are
            # (batch_size,).
        """
        counts = np.count_nonzero(mask, axis=1)
        width = int(counts.max())
        ids = np.full((self.batch_size, width), self.problem.num_ops, np.int64)
        features = np.zeros((self.batch_size, width, len(OP_FEATURES)), np.float32)
        _candidates(
            mask, device_free, 1.0 / self._op_scale, self._steps, self._graph, self._inputs_on,
            self._touched, self._arrival, ids, features,
        )  # fmt: skip
        return ids, features, counts


@entry
def _step(
    ops: np.ndarray,
    devices: np.ndarray,
    step: int,
    graph: Graph,
    seconds: np.ndarray,
    depth: np.ndarray,
    device_of: np.ndarray,
    inputs_on: np.ndarray,
    second_on: np.ndarray,
    wave_load: np.ndarray,
    touched: np.ndarray,
) -> None:
    succ_ptr, succ_ops, pred_ptr, _ = graph
    for b in range(len(ops)):
        op, device = ops[b], devices[b]
        device_of[b, op] = device
        wave_load[b, depth[op], device] += seconds[op, device]
        for i in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ_ops[i]
            inputs_on[b, consumer, device] += 1.0
            touched[b, consumer] = step
            share = 1.0 / (pred_ptr[consumer + 1] - pred_ptr[consumer])
            for j in range(succ_ptr[consumer], succ_ptr[consumer + 1]):
                second = succ_ops[j]
                second_on[b, second, device] += share / (pred_ptr[second + 1] - pred_ptr[second])


@entry
def _arrive(
    ops: np.ndarray,
    devices: np.ndarray,
    finish: np.ndarray,
    graph: Graph,
    latency: np.ndarray,
    rate: np.ndarray,
    volume: np.ndarray,
    arrival: np.ndarray,
) -> None:
    succ_ptr, succ_ops, _, _ = graph
    num_devices = len(latency)
    for b in range(len(ops)):
        op, source = ops[b], devices[b]
        for i in range(succ_ptr[op], succ_ptr[op + 1]):
            row = arrival[b, succ_ops[i]]
            for d in range(num_devices):
                seconds = latency[source, d] + volume[op] * rate[source, d]
                row[d] = max(row[d], finish[b, op] + seconds)


@entry
def _saturate(
    value: float,
) -> float:
    return value / (1.0 + abs(value))


@entry
def _device_features(
    ops: np.ndarray,
    times: np.ndarray,
    per_scale: float,
    per_op: float,
    graph: Graph,
    seconds: np.ndarray,
    volume: np.ndarray,
    depth: np.ndarray,
    wave_unit: np.ndarray,
    device_of: np.ndarray,
    inputs_on: np.ndarray,
    second_on: np.ndarray,
    wave_load: np.ndarray,
    out: np.ndarray,
) -> None:
    succ_ptr, succ_ops, pred_ptr, pred_ops = graph
    num_devices = times.shape[1]
    shares = np.empty((3, num_devices))
    for b in range(len(ops)):
        op = ops[b]
        shares[:] = 0.0
        total_volume = 0.0
        for i in range(pred_ptr[op], pred_ptr[op + 1]):
            producer = pred_ops[i]
            total_volume += volume[producer]
            shares[0, device_of[b, producer]] += volume[producer]
        fan_out = succ_ptr[op + 1] - succ_ptr[op]
        for i in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ_ops[i]
            others = max(pred_ptr[consumer + 1] - pred_ptr[consumer] - 1, 1)
            fan_second = succ_ptr[consumer + 1] - succ_ptr[consumer]
            for d in range(num_devices):
                shares[1, d] += inputs_on[b, consumer, d] / (others * fan_out)
                for j in range(succ_ptr[consumer], succ_ptr[consumer + 1]):
                    shares[2, d] += second_on[b, succ_ops[j], d] / (fan_second * fan_out)
        first_start, first_finish, load, mean_seconds = np.inf, np.inf, 0.0, 0.0
        for d in range(num_devices):
            first_start = min(first_start, times[b, d, 4])
            first_finish = min(first_finish, times[b, d, 4] + seconds[op, d])
            load += times[b, d, 0] / num_devices
            mean_seconds += seconds[op, d] / num_devices
        near, far = shares[1].sum(), shares[2].sum()
        for d in range(num_devices):
            row = out[b, d]
            for k in range(5):
                row[k] = times[b, d, k] * per_scale
            row[5] = seconds[op, d] / mean_seconds - 1.0 if mean_seconds > 0 else 0.0
            row[6] = _saturate((times[b, d, 4] - first_start) * per_op)
            row[7] = _saturate((times[b, d, 4] + seconds[op, d] - first_finish) * per_op)
            row[8] = _saturate((times[b, d, 0] - load) * per_op)
            row[9] = shares[0, d] / total_volume if total_volume > 0 else 0.0
            row[10] = shares[1, d]
            row[11] = shares[1, d] / near if near > 0 else 0.0
            row[12] = shares[2, d]
            row[13] = shares[2, d] / far if far > 0 else 0.0
            row[14] = wave_load[b, depth[op], d] * wave_unit[depth[op]]
            row[15] = 1.0 if times[b, d, 0] == 0.0 else 0.0


@entry
def _candidates(
    mask: np.ndarray,
    device_free: np.ndarray,
    per_op: float,
    step: int,
    graph: Graph,
    inputs_on: np.ndarray,
    touched: np.ndarray,
    arrival: np.ndarray,
    ids: np.ndarray,
    features: np.ndarray,
) -> None:
    succ_ptr, succ_ops, pred_ptr, _ = graph
    num_devices = inputs_on.shape[2]
    starts = np.empty(ids.shape[1])
    for b in range(mask.shape[0]):
        filled, first = 0, np.inf
        for op in range(mask.shape[1]):
            if not mask[b, op]:
                continue
            progress, recency = 0.0, 0.0
            for i in range(succ_ptr[op], succ_ptr[op + 1]):
                consumer = succ_ops[i]
                placed = 0.0
                for d in range(num_devices):
                    placed += inputs_on[b, consumer, d]
                others = max(pred_ptr[consumer + 1] - pred_ptr[consumer] - 1, 1)
                progress = max(progress, placed / others)
                if touched[b, consumer] >= 0:
                    recency = max(recency, 1.0 / (step - touched[b, consumer]))
            ids[b, filled] = op
            features[b, filled, 0] = progress
            features[b, filled, 1] = recency
            if touched[b, op] >= 0:
                features[b, filled, 2] = 1.0 / (step - touched[b, op])
            start = np.inf
            for d in range(num_devices):
                start = min(start, max(arrival[b, op, d], device_free[b, d]))
            first = min(first, start)
            starts[filled] = start
            filled += 1
        for i in range(filled):
            features[b, i, 3] = _saturate((starts[i] - first) * per_op)
