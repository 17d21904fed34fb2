"""What relates an op to the ops already placed on each device, kept up to date step by step.

Most ops of a sharded tensor program look alike to any message-passing encoder; what tells them
apart is whom they will meet. This file tracks, for a batch of growing placements, how much of the
inputs of every consumer (one level on, and two) already sits on each device, how much work of an
op's wave (the ops of equal depth) each device holds, and how far each consumer has got. All values
are shares or saturating ratios, so that they mean the same on every graph.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from doppler.construction.candidates import CandidateGraph
from doppler.construction.listing import list_candidates, saturate
from doppler.graph import hop_depths
from doppler.problem import PlacementProblem
from doppler.simulator.jit import compiled, entry, inlined

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


class RelationProblem(NamedTuple):
    """What does not change during an episode. `N` ops, `D` devices, `W` waves."""

    succ_ptr: np.ndarray  # (N + 1,)
    succ_ops: np.ndarray  # (num_edges,)
    pred_ptr: np.ndarray  # (N + 1,)
    pred_ops: np.ndarray  # (num_edges,)
    seconds: np.ndarray  # (N, D) [s]
    volume: np.ndarray  # (N,) mean seconds of a transfer [s]
    depth: np.ndarray  # (N,) the op's wave
    wave_unit: np.ndarray  # (W,) 1 / a device's fair share of the wave, 0 if that is nothing [1/s]
    per_scale: float  # 1 / the problem's lower bound [1/s]
    per_op: float  # 1 / mean seconds of an op [1/s]


class RelationState(NamedTuple):
    """`B` partial placements."""

    device_of: np.ndarray  # (B, N) -1 where unplaced
    inputs_on: np.ndarray  # (B, N, D) predecessors of each op per device
    second_on: np.ndarray  # (B, N, D) the same one level on, as shares
    wave_load: np.ndarray  # (B, W, D) [s]


class PlacementRelations:
    """Relations of a batch of partial placements of one problem.

    Args:
        problem: what is placed.
        batch_size: number of episodes that step together.
        scale: seconds that the paper's five device features are divided by (a lower bound). [s]

    Attributes:
        fixed: arrays for kernels.
        state: arrays for kernels, updated in place.
        candidate_graph: what SEL's features depend on, for kernels.
    """

    def __init__(self, problem: PlacementProblem, batch_size: int, scale: float) -> None:
        graph = problem.graph
        batch, ops, devices = batch_size, problem.num_ops, problem.num_devices
        tiny = np.finfo(float).tiny
        self.problem = problem
        self.batch_size = batch_size
        depth = hop_depths(graph)
        fair = np.bincount(depth, weights=problem.mean_op_seconds) / devices
        # Copies, because numba compiles the frozen originals as another, read-only type.
        edges: dict[str, Any] = {
            name: np.array(getattr(graph, name))
            for name in ("succ_ptr", "succ_ops", "pred_ptr", "pred_ops")
        }
        per_op = 1.0 / float(max(problem.mean_op_seconds.mean(), tiny))
        self.fixed = RelationProblem(
            **edges,
            seconds=np.array(problem.cost_model.op_seconds),
            volume=np.array(problem.mean_transfer_seconds),
            depth=np.array(depth),
            wave_unit=np.where(fair > 0, 1.0 / np.maximum(fair, tiny), 0.0),
            per_scale=1.0 / float(scale),
            per_op=per_op,
        )
        self.candidate_graph = CandidateGraph(
            **edges,
            latency=np.array(problem.route_latency),
            rate=np.array(problem.route_seconds_per_unit),
            volume=np.array(problem.cost_model.transfer_volume),
            per_op=per_op,
        )
        self.state = RelationState(
            device_of=np.full((batch, ops), -1, np.int64),
            inputs_on=np.zeros((batch, ops, devices)),
            second_on=np.zeros((batch, ops, devices)),
            wave_load=np.zeros((batch, len(fair), devices)),
        )
        self._touched = np.full((batch, ops), -1, np.int64)  # step that last placed an input
        self._arrival = np.zeros((batch, ops, devices))  # placed inputs, links uncontended [s]
        self._steps = 0

    def reset(self) -> None:
        """Forgets everything placed."""
        self.state.device_of.fill(-1)
        for array in self.state[1:]:
            array.fill(0.0)
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
            ops, devices, self._steps, finish, self.fixed, self.state, self.candidate_graph,
            self._touched, self._arrival,
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
        shares = np.empty((3, self.problem.num_devices))
        _device_features(ops, times, self.fixed, self.state, shares, out)

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
        list_candidates(
            mask, device_free, self._steps, self.candidate_graph, self.state.inputs_on,
            self._touched, self._arrival, ids, features,
        )  # fmt: skip
        return ids, features, counts


@inlined
def take_in(f: RelationProblem, s: RelationState, b: int, op: int, device: int) -> None:
    """Takes in one placed op of episode `b`."""
    s.device_of[b, op] = device
    s.wave_load[b, f.depth[op], device] += f.seconds[op, device]
    for i in range(f.succ_ptr[op], f.succ_ptr[op + 1]):
        consumer = f.succ_ops[i]
        s.inputs_on[b, consumer, device] += 1.0
        share = 1.0 / (f.pred_ptr[consumer + 1] - f.pred_ptr[consumer])
        for j in range(f.succ_ptr[consumer], f.succ_ptr[consumer + 1]):
            second = f.succ_ops[j]
            inputs = f.pred_ptr[second + 1] - f.pred_ptr[second]
            s.second_on[b, second, device] += share / inputs


@compiled
def _take_in_all(
    ops: np.ndarray,
    devices: np.ndarray,
    step: int,
    finish: np.ndarray,
    f: RelationProblem,
    s: RelationState,
    g: CandidateGraph,
    touched: np.ndarray,
    arrival: np.ndarray,
) -> None:
    num_devices = len(g.latency)
    for b in range(len(ops)):
        op, source = ops[b], devices[b]
        take_in(f, s, b, op, source)
        for i in range(f.succ_ptr[op], f.succ_ptr[op + 1]):
            consumer = f.succ_ops[i]
            touched[b, consumer] = step
            for d in range(num_devices):
                seconds = g.latency[source, d] + g.volume[op] * g.rate[source, d]
                arrival[b, consumer, d] = max(arrival[b, consumer, d], finish[b, op] + seconds)


@entry
def _step(
    ops: np.ndarray,
    devices: np.ndarray,
    step: int,
    finish: np.ndarray,
    f: RelationProblem,
    s: RelationState,
    g: CandidateGraph,
    touched: np.ndarray,
    arrival: np.ndarray,
) -> None:
    _take_in_all(ops, devices, step, finish, f, s, g, touched, arrival)


@inlined
def _meetings(f: RelationProblem, s: RelationState, b: int, op: int, shares: np.ndarray) -> float:
    """Fills `shares` per device: input volume, co-producers, and these two levels on.

    Returns the volume of all inputs.
    """
    num_devices = shares.shape[1]
    for k in range(3):
        for d in range(num_devices):
            shares[k, d] = 0.0
    total_volume = 0.0
    for i in range(f.pred_ptr[op], f.pred_ptr[op + 1]):
        producer = f.pred_ops[i]
        total_volume += f.volume[producer]
        shares[0, s.device_of[b, producer]] += f.volume[producer]
    fan_out = f.succ_ptr[op + 1] - f.succ_ptr[op]
    for i in range(f.succ_ptr[op], f.succ_ptr[op + 1]):
        consumer = f.succ_ops[i]
        others = max(f.pred_ptr[consumer + 1] - f.pred_ptr[consumer] - 1, 1)
        fan_second = f.succ_ptr[consumer + 1] - f.succ_ptr[consumer]
        for d in range(num_devices):
            shares[1, d] += s.inputs_on[b, consumer, d] / (others * fan_out)
            for j in range(f.succ_ptr[consumer], f.succ_ptr[consumer + 1]):
                shares[2, d] += s.second_on[b, f.succ_ops[j], d] / (fan_second * fan_out)
    return total_volume


@compiled
def describe_devices(
    f: RelationProblem,
    s: RelationState,
    b: int,
    op: int,
    times: np.ndarray,
    row: int,
    shares: np.ndarray,
    out: np.ndarray,
) -> None:
    """Writes the features of placing an op of episode `b` on each device.

    Args:
        f, s: the relations.
        b: the episode.
        op: a candidate of it.
        times, row: row `row` holds what the construction says. # (rows, D, 5) [s]
        shares: scratch. # (3, D)
        out: row `row` gets the features. # (rows, D, 5 or 16) float32
    """
    num_devices = out.shape[1]
    for d in range(num_devices):
        for k in range(PAPER_DEVICE_FEATURES):
            out[row, d, k] = times[row, d, k] * f.per_scale
    if out.shape[2] == PAPER_DEVICE_FEATURES:
        return
    total_volume = _meetings(f, s, b, op, shares)
    first_start, first_finish, load, mean_seconds = np.inf, np.inf, 0.0, 0.0
    near, far = 0.0, 0.0
    for d in range(num_devices):
        start = times[row, d, 4]
        first_start = min(first_start, start)
        first_finish = min(first_finish, start + f.seconds[op, d])
        load += times[row, d, 0] / num_devices
        mean_seconds += f.seconds[op, d] / num_devices
        near += shares[1, d]
        far += shares[2, d]
    wave = f.depth[op]
    for d in range(num_devices):
        start, seconds = times[row, d, 4], f.seconds[op, d]
        out[row, d, 5] = seconds / mean_seconds - 1.0 if mean_seconds > 0 else 0.0
        out[row, d, 6] = saturate((start - first_start) * f.per_op)
        out[row, d, 7] = saturate((start + seconds - first_finish) * f.per_op)
        out[row, d, 8] = saturate((times[row, d, 0] - load) * f.per_op)
        out[row, d, 9] = shares[0, d] / total_volume if total_volume > 0 else 0.0
        out[row, d, 10] = shares[1, d]
        out[row, d, 11] = shares[1, d] / near if near > 0 else 0.0
        out[row, d, 12] = shares[2, d]
        out[row, d, 13] = shares[2, d] / far if far > 0 else 0.0
        out[row, d, 14] = s.wave_load[b, wave, d] * f.wave_unit[wave]
        out[row, d, 15] = 1.0 if times[row, d, 0] == 0.0 else 0.0


@compiled
def _describe_all(
    ops: np.ndarray,
    times: np.ndarray,
    f: RelationProblem,
    s: RelationState,
    shares: np.ndarray,
    out: np.ndarray,
) -> None:
    for b in range(len(ops)):
        describe_devices(f, s, b, ops[b], times, b, shares, out)


@entry
def _device_features(
    ops: np.ndarray,
    times: np.ndarray,
    f: RelationProblem,
    s: RelationState,
    shares: np.ndarray,
    out: np.ndarray,
) -> None:
    _describe_all(ops, times, f, s, shares, out)
