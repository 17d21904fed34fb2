"""Lists and describes all candidates of a step at once, for runners that step op by op."""

from __future__ import annotations

import numpy as np

from doppler.construction.candidates import CandidateGraph
from doppler.simulator.jit import compiled, entry, inlined


@inlined
def saturate(value: float) -> float:
    """From all numbers into (-1, 1)."""
    return value / (1.0 + abs(value))


@compiled
def _list_candidates(
    mask: np.ndarray,
    device_free: np.ndarray,
    step: int,
    g: CandidateGraph,
    inputs_on: np.ndarray,
    touched: np.ndarray,
    arrival: np.ndarray,
    starts: np.ndarray,
    ids: np.ndarray,
    features: np.ndarray,
) -> None:
    num_devices = inputs_on.shape[2]
    for b in range(mask.shape[0]):
        filled, first = 0, np.inf
        for op in range(mask.shape[1]):
            if not mask[b, op]:
                continue
            progress, recency = 0.0, 0.0
            for i in range(g.succ_ptr[op], g.succ_ptr[op + 1]):
                consumer = g.succ_ops[i]
                placed = 0.0
                for d in range(num_devices):
                    placed += inputs_on[b, consumer, d]
                others = max(g.pred_ptr[consumer + 1] - g.pred_ptr[consumer] - 1, 1)
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
            features[b, i, 3] = saturate((starts[i] - first) * g.per_op)


@entry
def list_candidates(
    mask: np.ndarray,
    device_free: np.ndarray,
    step: int,
    g: CandidateGraph,
    inputs_on: np.ndarray,
    touched: np.ndarray,
    arrival: np.ndarray,
    ids: np.ndarray,
    features: np.ndarray,
) -> None:
    """Fills `ids` and `features`; see `PlacementRelations.candidates`.

    Args:
        mask: True at candidates. # (batch, N) bool
        device_free: when each device's first slot is free. # (batch, D) [s]
        step: that is about to be made.
        g: the graph.
        inputs_on: predecessors of each op per device. # (batch, N, D)
        touched: step that last placed an input of each op, -1 for none. # (batch, N)
        arrival: when each op's placed inputs are on each device. # (batch, N, D) [s]
        ids: gets the candidates, ascending. # (batch, width)
        features: gets their features. # (batch, width, 4) float32
    """
    starts = np.empty(ids.shape[1])
    _list_candidates(mask, device_free, step, g, inputs_on, touched, arrival, starts, ids, features)
