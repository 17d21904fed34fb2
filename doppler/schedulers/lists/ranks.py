"""Levels of ops in a planning model: how far from the entries, how far to the exits."""

from __future__ import annotations

import numpy as np

from doppler.schedulers.lists.model import PlanningModel, pins
from doppler.simulator.jit import entry

TIE_DIGITS = 1e12
"""Levels that agree to this many parts of the largest are a tie: sums differ by rounding."""


def rounded(levels: np.ndarray) -> np.ndarray:
    """Levels in whole parts of the largest, so that ties are exact; keeps their order."""
    top = np.abs(levels).max()
    return np.zeros(len(levels)) if top == 0 else np.round(levels / top * TIE_DIGITS)


def upward_ranks(
    model: PlanningModel, seconds: np.ndarray | None = None, communication: bool = True
) -> np.ndarray:
    """Longest path from each op to an exit, the op included.

    With communication it is rank_u of Topcuoglu et al. (2002, equation 8), without it the static
    level.

    Args:
        model: the problem.
        seconds: of each op; None for its mean over the devices. # (N,) [s]
        communication: whether edges count, with their mean seconds over the pairs of devices.

    Returns:
        # (N,) [s]
    """
    out = np.zeros(model.num_ops)
    edges = model.edge_seconds if communication else np.zeros(len(model.edge_seconds))
    upward(
        model.succ_ptr,
        model.succ_ops,
        model.topological_order,
        model.mean_seconds if seconds is None else seconds,
        edges,
        out,
    )
    return out


def downward_ranks(model: PlanningModel) -> np.ndarray:
    """Longest mean path from an entry to each op, the op excluded. # (N,) [s]

    Source: rank_d of Topcuoglu et al. (2002, equation 10).
    """
    out = np.zeros(model.num_ops)
    downward(
        model.succ_ptr,
        model.succ_ops,
        model.topological_order,
        model.mean_seconds,
        model.edge_seconds,
        out,
    )
    return out


def longest_path(model: PlanningModel, ranks: np.ndarray) -> np.ndarray:
    """Ops of a longest mean path, from an entry to an exit; ties by topological position.

    Walks from the entry of the highest upward rank to the consumer through which the rank came, so
    that no two sums need to be equal, which rounding would spoil.

    Args:
        model: the problem.
        ranks: its upward ranks with communication. # (N,) [s]
    """
    entries = model.topological_order[np.diff(model.pred_ptr)[model.topological_order] == 0]
    op = int(entries[np.argmax(rounded(ranks)[entries])])
    scale = max(float(ranks.max()), np.finfo(float).tiny)
    path = [op]
    while model.succ_ptr[op] < model.succ_ptr[op + 1]:
        row = slice(model.succ_ptr[op], model.succ_ptr[op + 1])
        consumers = model.succ_ops[row]
        onward = np.round((model.edge_seconds[row] + ranks[consumers]) / scale * TIE_DIGITS)
        op = int(consumers[np.lexsort((model.position[consumers], -onward))[0]])
        path.append(op)
    return np.array(path)


def optimistic_costs(model: PlanningModel) -> np.ndarray:
    """The optimistic cost table: least seconds from each op's end on each device to the end of all.

    OCT[i, p] = max over consumers j of min over devices w of OCT[j, w] + seconds[j, w] + (mean
    seconds of the edge if w != p); w ranges over the devices that a pin leaves. # (N, D) [s]

    Source: Arabnejad and Barbosa (2014, equation 3).
    """
    out = np.zeros((model.num_ops, model.num_devices))
    optimistic(
        model.succ_ptr,
        model.succ_ops,
        model.topological_order,
        pins(model.block, model.block_device),
        model.op_seconds,
        model.edge_seconds,
        out,
    )
    return out


@entry
def upward(
    succ_ptr: np.ndarray,
    succ_ops: np.ndarray,
    topological_order: np.ndarray,
    seconds: np.ndarray,
    edges: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fills `out` (N,) with the longest path from each op to an exit, the op included."""
    for i in range(len(out) - 1, -1, -1):
        op = topological_order[i]
        onward = 0.0
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            onward = max(onward, edges[edge] + out[succ_ops[edge]])
        out[op] = seconds[op] + onward


@entry
def downward(
    succ_ptr: np.ndarray,
    succ_ops: np.ndarray,
    topological_order: np.ndarray,
    seconds: np.ndarray,
    edges: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fills `out` (N,), zero before, with the longest path from an entry, the op excluded."""
    for op in topological_order:
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ_ops[edge]
            out[consumer] = max(out[consumer], out[op] + seconds[op] + edges[edge])


@entry
def optimistic(
    succ_ptr: np.ndarray,
    succ_ops: np.ndarray,
    topological_order: np.ndarray,
    pins: np.ndarray,
    op_seconds: np.ndarray,
    edges: np.ndarray,
    out: np.ndarray,
) -> None:
    """Fills `out` (N, D), zero before, with the optimistic cost table."""
    num_ops, num_devices = out.shape
    for i in range(num_ops - 1, -1, -1):
        op = topological_order[i]
        for edge in range(succ_ptr[op], succ_ptr[op + 1]):
            consumer = succ_ops[edge]
            pin = pins[consumer]
            least = np.inf
            for device in range(num_devices):
                if pin < 0 or pin == device:
                    least = min(least, out[consumer, device] + op_seconds[consumer, device])
            for device in range(num_devices):
                onward = least + edges[edge]
                if pin < 0 or pin == device:
                    onward = min(onward, out[consumer, device] + op_seconds[consumer, device])
                out[op, device] = max(out[op, device], onward)
