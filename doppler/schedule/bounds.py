"""Lower bounds on the makespan of any placement under any executor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.graph import b_levels
from doppler.problem import PlacementProblem

MAX_PROFILES = 10_000
"""The linear program sees at most so many kinds of ops; HiGHS takes about a second for them."""
PROFILE_DIGITS = 12


@dataclass(frozen=True)
class LowerBounds:
    """Bounds on the makespan without noise; `best` is the largest. [s]

    Pinned ops count on their device only; in `work` and `area` a colocation group is one op.

    Args:
        critical_path: longest chain of ops, each on its fastest device, communication free. [s]
        work: all work over the sum of speeds, a device's speed being the most that it reaches on
            any op relative to that op's fastest device. On equal devices this is all work over
            all compute slots, on uniform machines all work over the sum of their speeds. [s]
        area: the least time in which the devices could share all ops, ops split at will: the
            linear program of unrelated machines. At least `work`, and equal to it on uniform
            machines. [s]
    """

    critical_path: float
    work: float
    area: float

    @property
    def best(self) -> float:
        return max(self.critical_path, self.work, self.area)


def lower_bounds(problem: PlacementProblem) -> LowerBounds:
    """Computes the bounds of a problem; without noise no simulated makespan is below them.

    Source of the linear program: Lawler and Labetoulle (1978), "On preemptive scheduling of
    unrelated parallel processors by linear programming".
    """
    seconds = _allowed_seconds(problem)
    slots = problem.topology.compute_slots.astype(np.float64)
    work, area = _shared_work(_by_block(seconds, problem.constraints.block), slots)
    return LowerBounds(
        critical_path=float(b_levels(problem.graph, seconds.min(axis=1)).max()),
        work=work,
        area=area,
    )


def _allowed_seconds(problem: PlacementProblem) -> np.ndarray:
    """Seconds of each op, infinite on devices where its pin or its group's does not let it run.

    # (num_ops, num_devices) [s]
    """
    constraints = problem.constraints
    members = np.flatnonzero(constraints.block >= 0)
    pins = constraints.block_device[constraints.block[members]]
    members, pins = members[pins >= 0], pins[pins >= 0]
    seconds = problem.cost_model.op_seconds.copy()
    seconds[members] = np.inf
    seconds[members, pins] = problem.cost_model.op_seconds[members, pins]
    return seconds


def _by_block(seconds: np.ndarray, block: np.ndarray) -> np.ndarray:
    """Adds up the rows of ops that share a block. # (num_blocks + free ops, num_devices) [s]"""
    together = np.zeros((block.max() + 1, seconds.shape[1]))
    np.add.at(together, block[block >= 0], seconds[block >= 0])
    return np.concatenate([together, seconds[block < 0]])


def _shared_work(seconds: np.ndarray, slots: np.ndarray) -> tuple[float, float]:
    """The bounds `work` and `area`.

    Both are prices of the dual program: where a second on device d costs p[d] and all slots
    together cost 1 a second, no op costs less than min_d seconds[v, d] * p[d], so that the sum over
    the ops is a bound, whatever the prices. `area` takes the best ones, as far as the solver finds
    them; evaluating them here makes its tolerance harmless.

    Args:
        seconds: of each op or group, infinite where it may not run. # (rows, num_devices) [s]
        slots: # (num_devices,)
    """
    fastest = seconds.min(axis=1)  # finite: a pin leaves one device
    lasting = fastest > 0
    if not lasting.any():
        return 0.0, 0.0
    work = fastest[lasting]
    with np.errstate(over="ignore"):  # beyond all floats is as good as not allowed
        ratios = seconds[lasting] / work[:, None]  # (ops, num_devices), at least 1
    speeds = 1.0 / ratios.min(axis=0)
    bound = _priced(work, ratios, slots, speeds)
    if (ratios == ratios[0]).all():
        return bound, bound
    prices = _best_prices(work, ratios, slots)
    return bound, max(bound, _priced(work, ratios, slots, prices))


def _priced(work: np.ndarray, ratios: np.ndarray, slots: np.ndarray, prices: np.ndarray) -> float:
    allowed = np.isfinite(ratios)
    each = np.where(allowed, np.where(allowed, ratios, 0.0) * prices, np.inf).min(axis=1)
    return float(work @ each / (slots @ prices))


def _best_prices(work: np.ndarray, ratios: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Solves min T: sum_d x[g, d] = 1, sum_g x[g, d] work[g] ratio[g, d] <= slots[d] T.

    Ops whose seconds are proportional are one row of the program; where more rows remain than
    `MAX_PROFILES`, an even sample of them is priced.

    Returns:
        The dual values of the devices' rows, not negative; equal prices, a weaker bound, where the
        solver fails, as with devices of very unlike speed. # (num_devices,)
    """
    from scipy import sparse
    from scipy.optimize import linprog

    profiles, group = np.unique(np.round(ratios, PROFILE_DIGITS), axis=0, return_inverse=True)
    weights = np.bincount(group.ravel(), weights=work)
    chosen = np.unique(np.linspace(0, len(profiles) - 1, MAX_PROFILES).astype(np.int64))
    profiles, weights = profiles[chosen], weights[chosen] / weights[chosen].sum()
    rows, devices = np.nonzero(np.isfinite(profiles))
    variables = np.arange(len(rows))
    loads = weights[rows] * profiles[rows, devices]
    shape = (len(profiles), len(rows) + 1)  # the last variable is T
    whole = sparse.csr_matrix((np.ones(len(rows)), (rows, variables)), shape=shape)
    load = sparse.csr_matrix((loads, (devices, variables)), shape=(len(slots), len(rows)))
    solution = linprog(
        np.append(np.zeros(len(rows)), 1.0),
        A_ub=sparse.hstack([load, -slots[:, None]], format="csr"),
        b_ub=np.zeros(len(slots)),
        A_eq=whole,
        b_eq=np.ones(len(profiles)),
        method="highs",
    )
    marginals = solution.ineqlin.marginals if solution.status == 0 else None
    if marginals is None or not np.isfinite(marginals).all():
        return np.ones(len(slots))
    prices = np.maximum(-marginals, 0.0)
    return prices if prices.any() else np.ones(len(slots))
