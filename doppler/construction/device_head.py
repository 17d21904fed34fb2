"""PLC's head on the devices of one step, forwards and backwards.

A handful of rows is too little work for a call into a tensor library, but a roll-out does it for
every op of every episode. The network is that of `doppler.policies.dual_policy.PlcHead`:

    second = leaky(features @ w1 + b1) @ w2 + mean of pooled rows + the op's row
    logit  = leaky(second) @ w3 + b3
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from doppler.simulator.jit import compiled, reducing, vectorised

SLOPE = np.float32(0.01)
"""Of the leaky rectifier below 0, as in `torch.nn.functional.leaky_relu`."""
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)
_UNROLLED = 4
"""Rows of a matrix that one pass over a result takes in."""


class DeviceHead(NamedTuple):
    """Weights and looked-up rows, float32. `F` features, widths `H` and `K`, `N` ops."""

    w1: np.ndarray  # (F, H)
    b1: np.ndarray  # (H,)
    w2: np.ndarray  # (H, K)
    w2_turned: np.ndarray  # (K, H) the same numbers
    w3: np.ndarray  # (K,)
    b3: np.ndarray  # (1,)
    op_rows: np.ndarray  # (N + 1, K) `PolicyTables.plc_ops`
    pool_rows: np.ndarray  # (N + 1, K) `PolicyTables.plc_pool`


class HeadState(NamedTuple):
    """One episode's devices, float32."""

    features: np.ndarray  # (1, D, F)
    first: np.ndarray  # (D, H) before the rectifier
    hidden: np.ndarray  # (D, H) after it
    second: np.ndarray  # (D, K) before the rectifier
    logits: np.ndarray  # (1, D)
    pool_sums: np.ndarray  # (D, K) of the pool rows of the ops on each device
    pool_means: np.ndarray  # (D, K)
    pool_counts: np.ndarray  # (D,) int64
    second_slopes: np.ndarray  # (D, K) of the loss
    first_slopes: np.ndarray  # (D, H)


class HeadSlopes(NamedTuple):
    """Slopes of the loss by weights and rows, float32, added up per group of episodes `G`."""

    w1: np.ndarray  # (G, F, H)
    b1: np.ndarray  # (G, H)
    w2: np.ndarray  # (G, H, K)
    w3: np.ndarray  # (G, K)
    b3: np.ndarray  # (G, 1)
    op_rows: np.ndarray  # (G, N + 1, K)
    pool_rows: np.ndarray  # (G, N + 1, K)


def make_head_state(num_devices: int, head: DeviceHead) -> HeadState:
    """Allocates the scratch space; `empty_pools` starts an episode."""
    num_features, hidden = head.w1.shape
    width = len(head.w3)

    def rows(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    return HeadState(
        features=rows(1, num_devices, num_features),
        first=rows(num_devices, hidden),
        hidden=rows(num_devices, hidden),
        second=rows(num_devices, width),
        logits=rows(1, num_devices),
        pool_sums=rows(num_devices, width),
        pool_means=rows(num_devices, width),
        pool_counts=np.zeros(num_devices, np.int64),
        second_slopes=rows(num_devices, width),
        first_slopes=rows(num_devices, hidden),
    )


def make_head_slopes(groups: int, head: DeviceHead) -> HeadSlopes:
    """Zeros."""
    fields = {
        name: np.zeros((groups, *getattr(head, name).shape), np.float32)
        for name in HeadSlopes._fields
    }
    return HeadSlopes(**fields)


@compiled
def empty_pools(s: HeadState) -> None:
    """Takes all ops off the devices."""
    for d in range(len(s.pool_counts)):
        s.pool_counts[d] = 0
        for k in range(s.pool_sums.shape[1]):
            s.pool_sums[d, k] = 0.0
            s.pool_means[d, k] = 0.0


@vectorised
def _add_row(rows: np.ndarray, row: int, out: np.ndarray, place: int) -> None:
    for k in range(out.shape[1]):
        out[place, k] += rows[row, k]


@vectorised
def _divide(sums: np.ndarray, row: int, count: float, out: np.ndarray) -> None:
    for k in range(out.shape[1]):
        out[row, k] = sums[row, k] / count


@compiled
def pool(h: DeviceHead, s: HeadState, op: int, device: int) -> None:
    """Puts an op on a device."""
    s.pool_counts[device] += 1
    _add_row(h.pool_rows, op, s.pool_sums, device)
    _divide(s.pool_sums, device, np.float32(s.pool_counts[device]), s.pool_means)


@vectorised
def _start_row(bias: np.ndarray, out: np.ndarray, row: int) -> None:
    for k in range(out.shape[1]):
        out[row, k] = bias[k]


@vectorised
def _start_second(
    op_rows: np.ndarray, op: int, means: np.ndarray, row: int, out: np.ndarray
) -> None:
    for k in range(out.shape[1]):
        out[row, k] = op_rows[op, k] + means[row, k]


@vectorised
def _rectify(rows: np.ndarray, row: int, out: np.ndarray) -> None:
    for k in range(out.shape[1]):
        value = rows[row, k]
        out[row, k] = value if value > _ZERO else value * SLOPE


@vectorised
def _add_product(x: np.ndarray, row: int, w: np.ndarray, out: np.ndarray) -> None:
    """out[row] += x[row] @ w"""
    inputs, width = w.shape
    whole = inputs - inputs % _UNROLLED
    for i in range(0, whole, _UNROLLED):
        x0, x1, x2, x3 = x[row, i], x[row, i + 1], x[row, i + 2], x[row, i + 3]
        for k in range(width):
            out[row, k] += x0 * w[i, k] + x1 * w[i + 1, k] + (x2 * w[i + 2, k] + x3 * w[i + 3, k])
    for i in range(whole, inputs):
        x0 = x[row, i]
        for k in range(width):
            out[row, k] += x0 * w[i, k]


@vectorised
def _add_feature_product(x: np.ndarray, row: int, w: np.ndarray, out: np.ndarray) -> None:
    """out[row] += x[0, row] @ w"""
    for i in range(w.shape[0]):
        value = x[0, row, i]
        for k in range(w.shape[1]):
            out[row, k] += value * w[i, k]


@reducing
def _rectified_dot(rows: np.ndarray, row: int, w: np.ndarray) -> np.float32:
    total = _ZERO
    for k in range(len(w)):
        value = rows[row, k]
        total += (value if value > _ZERO else value * SLOPE) * w[k]
    return total


@compiled
def score_devices(h: DeviceHead, s: HeadState, op: int) -> None:
    """Fills `logits` from `features`, the pools and the op's row."""
    for d in range(len(s.pool_counts)):
        _start_row(h.b1, s.first, d)
        _add_feature_product(s.features, d, h.w1, s.first)
        _rectify(s.first, d, s.hidden)
        _start_second(h.op_rows, op, s.pool_means, d, s.second)
        _add_product(s.hidden, d, h.w2, s.second)
        s.logits[0, d] = h.b3[0] + _rectified_dot(s.second, d, h.w3)


@vectorised
def _slope_second(
    second: np.ndarray, row: int, w3: np.ndarray, slope: float, out: np.ndarray
) -> None:
    for k in range(len(w3)):
        out[row, k] = slope * w3[k] * (_ONE if second[row, k] > _ZERO else SLOPE)


@vectorised
def _slope_first(first: np.ndarray, row: int, out: np.ndarray) -> None:
    for k in range(out.shape[1]):
        out[row, k] *= _ONE if first[row, k] > _ZERO else SLOPE


@vectorised
def _add_rectified(rows: np.ndarray, row: int, factor: float, out: np.ndarray, place: int) -> None:
    for k in range(out.shape[1]):
        value = rows[row, k]
        out[place, k] += factor * (value if value > _ZERO else value * SLOPE)


@vectorised
def _add_to_op(rows: np.ndarray, row: int, out: np.ndarray, group: int, op: int) -> None:
    for k in range(rows.shape[1]):
        out[group, op, k] += rows[row, k]


@vectorised
def _add_outer(x: np.ndarray, y: np.ndarray, row: int, out: np.ndarray, group: int) -> None:
    """out[group] += outer product of x[row] and y[row]"""
    for i in range(out.shape[1]):
        value = x[row, i]
        for k in range(out.shape[2]):
            out[group, i, k] += value * y[row, k]


@vectorised
def _add_four_outer(x: np.ndarray, y: np.ndarray, row: int, out: np.ndarray, group: int) -> None:
    """The same for four consecutive rows in one pass over the result."""
    for i in range(out.shape[1]):
        x0, x1, x2, x3 = x[row, i], x[row + 1, i], x[row + 2, i], x[row + 3, i]
        for k in range(out.shape[2]):
            out[group, i, k] += (
                x0 * y[row, k] + x1 * y[row + 1, k] + (x2 * y[row + 2, k] + x3 * y[row + 3, k])
            )


@vectorised
def _add_outer_of_features(
    x: np.ndarray, y: np.ndarray, row: int, out: np.ndarray, group: int
) -> None:
    """out[group] += outer product of x[0, row] and y[row]"""
    for i in range(out.shape[1]):
        value = x[0, row, i]
        for k in range(out.shape[2]):
            out[group, i, k] += value * y[row, k]


@vectorised
def _clear_row(rows: np.ndarray, row: int) -> None:
    for k in range(rows.shape[1]):
        rows[row, k] = _ZERO


@compiled
def slope_back(
    h: DeviceHead, s: HeadState, op: int, slopes: np.ndarray, g: HeadSlopes, group: int
) -> None:
    """Takes the loss's slopes by the logits back to weights and rows, after `score_devices`.

    What the pools get is left in `second_slopes`, as the slopes of the pools' means.

    Args:
        h, s: head and state.
        op: of the step.
        slopes: of the loss by logit. # (1, D) float32
        g: is added to, except to `pool_rows`.
        group: row of `g`.
    """
    num_devices = len(s.pool_counts)
    for d in range(num_devices):
        slope = slopes[0, d]
        g.b3[group, 0] += slope
        _add_rectified(s.second, d, slope, g.w3, group)
        _slope_second(s.second, d, h.w3, slope, s.second_slopes)
        _add_to_op(s.second_slopes, d, g.op_rows, group, op)
        _clear_row(s.first_slopes, d)
        _add_product(s.second_slopes, d, h.w2_turned, s.first_slopes)
        _slope_first(s.first, d, s.first_slopes)
        _add_row(s.first_slopes, d, g.b1, group)
        _add_outer_of_features(s.features, s.first_slopes, d, g.w1, group)
    whole = num_devices - num_devices % _UNROLLED
    for d in range(0, whole, _UNROLLED):
        _add_four_outer(s.hidden, s.second_slopes, d, g.w2, group)
    for d in range(whole, num_devices):
        _add_outer(s.hidden, s.second_slopes, d, g.w2, group)
