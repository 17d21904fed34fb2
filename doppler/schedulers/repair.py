"""Makes a placement fit in the devices' memory, for schedulers that look at time alone.

A hill climb on how far the devices' peaks exceed their capacity: units leave the fullest device,
for another one or for a unit of it, whenever that lessens the excess.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from doppler.schedulers.search.moves import undo_move
from doppler.schedulers.search.neighbourhood import (
    DEFAULT_WEIGHTS,
    MOVE,
    Neighbourhood,
    make_neighbourhood,
)
from doppler.schedulers.search.state import (
    NUM_MOVED,
    ORDER_FROM,
    State,
    below,
    device_of,
    make_state,
    other_device,
    place,
    uniform,
)
from doppler.simulator.jit import entry
from doppler.simulator.kernel import simulate_trace
from doppler.simulator.search import SearchTables, search_tables

if TYPE_CHECKING:
    from doppler.simulator import Simulator

TRIES = 5_000
"""Most simulations of a repair."""
TRIES_PER_UNIT = 20
_SWAP_CHANCE = 0.4
_DRAWS = 64


def memory_may_bind(simulator: Any) -> bool:
    """Whether a placement could need more memory than a device has."""
    return bool(simulator.engine.memory) and not simulator.engine.levels


def repaired(
    simulator: Simulator,
    devices: np.ndarray,
    order: np.ndarray | None,
    rng: np.random.Generator,
    most: int = TRIES,
) -> tuple[np.ndarray | None, int]:
    """A placement that fits, made from one that does not.

    Args:
        simulator: work-conserving; tells what is resident when.
        devices: respects pins and groups. # (num_ops,)
        order: under `choose=given`. # (num_ops,)
        rng: the only source of randomness.
        most: simulations.

    Returns:
        Devices # (num_ops,), or None if none was found; and how many simulations it took.
    """
    given = simulator.choose == "given"
    tables = search_tables(simulator)
    hood = make_neighbourhood(simulator.problem, DEFAULT_WEIGHTS, orders=False)
    if most < 1 or not len(hood.movable) or hood.num_devices[0] < 2:
        return None, 0
    seed = int(rng.integers(0, 2**63))
    state = make_state(hood, devices, order if given else None, seed)
    capacity = tables.tables.capacity
    ample = tables._replace(tables=tables.tables._replace(capacity=np.full_like(capacity, np.inf)))
    tries = min(most, TRIES, TRIES_PER_UNIT * len(hood.movable))
    excess, made = _lessen(ample, hood, state, capacity, tries)
    return (state.devices.copy() if excess == 0 else None), int(made)


@entry
def _lessen(
    t: SearchTables, hood: Neighbourhood, s: State, capacity: np.ndarray, tries: int
) -> tuple[float, int]:
    """Lessens the excess; returns what is left of it, and how many simulations it took."""
    excess, fullest = _excess(t, s, capacity)
    for made in range(1, tries):
        if excess == 0:
            return excess, made
        unit = hood.movable[below(s, len(hood.movable))]
        for _ in range(_DRAWS):
            if device_of(hood, s, unit) == fullest:
                break
            unit = hood.movable[below(s, len(hood.movable))]
        s.counts[NUM_MOVED] = 0
        s.counts[ORDER_FROM] = -1
        device = device_of(hood, s, unit)
        target = other_device(s, device, hood.num_devices[0])
        if uniform(s) < _SWAP_CHANCE:
            other = hood.movable[below(s, len(hood.movable))]
            target = device_of(hood, s, other)
            if target == device:
                continue
            place(hood, s, other, device)
        place(hood, s, unit, target)
        after, then_fullest = _excess(t, s, capacity)
        if after <= excess:
            excess, fullest = after, then_fullest
        else:
            undo_move(hood, s, MOVE)
    return excess, tries


@entry
def _excess(t: SearchTables, s: State, capacity: np.ndarray) -> tuple[float, int]:
    """Sum over devices of what exceeds their capacity, relative to it; and the worst of them."""
    _, _, transfers = simulate_trace(
        t.tables, s.devices, s.order, t.rank, t.op_factor, t.transfer_factor, True
    )
    total, worst, fullest = 0.0, 0.0, 0
    for device in range(len(capacity)):
        over = transfers.peak[device] - capacity[device]
        if over > 0:
            share = over / max(capacity[device], 1.0)
            total += share
            if share > worst:
                worst, fullest = share, device
    return total, fullest
