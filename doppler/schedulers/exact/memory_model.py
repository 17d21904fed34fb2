"""Resident bytes in the CP-SAT model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from doppler.schedulers.exact.model import PlacementModel

UNITS = 1_000_000
"""Where bytes are no whole numbers they are rounded down to this part of the capacity."""
MOST_BYTES = 2.0**53
"""Up to here floats are exact; more are taken for no whole numbers."""


def add_memory(model: PlacementModel) -> None:
    """Limits what is resident on each device that all outputs together would overfill.

    Where bytes are no whole numbers, sizes are rounded down and capacities up, so that a bound
    stays one; whether a schedule fits in the true bytes is checked on the schedule.
    """
    problem = model.instance.problem
    sizes = problem.graph.require("output_bytes")
    homes = _home_ends(model)
    copies = _copy_ends(model)
    for device, capacity in enumerate(problem.topology.memory_bytes.tolist()):
        if sizes.sum() <= capacity:
            continue
        amounts, room = _units(sizes, capacity)
        intervals, demands = [], []
        for op, end in enumerate(homes):
            literal = model.on[op][device]
            if literal is not None and amounts[op]:
                intervals.append(_interval(model, model.start[op], end, literal))
                demands.append(amounts[op])
        for (op, source, target), end in copies.items():
            if target == device and amounts[op]:
                literal = model.moves[op, source, target]
                start = model.hops[op, source, target][-1][0]
                intervals.append(_interval(model, start, end, literal))
                demands.append(amounts[op])
        model.model.add_cumulative(intervals, demands, room)


def _units(sizes: np.ndarray, capacity: float) -> tuple[list[int], int]:
    """Sizes and capacity in whole units; sizes above the capacity are cut to one unit more."""
    if sizes.sum() <= MOST_BYTES and (np.floor(sizes) == sizes).all():
        whole = sizes.astype(np.int64)
        unit = int(np.gcd.reduce(whole))
        room = int(capacity // unit)
        return np.minimum(whole // unit, room + 1).tolist(), room
    with np.errstate(over="ignore"):
        shares = np.minimum(sizes / capacity, 2.0)
    return np.floor(shares * UNITS * (1 - 1e-12)).astype(np.int64).tolist(), UNITS + 1


def _interval(model: PlacementModel, start: Any, end: Any, literal: Any) -> Any:
    size = model.model.new_int_var(0, model.upper + 1, "")
    return model.model.new_optional_interval_var(start, size, end, literal, "")


def _home_ends(model: PlacementModel) -> list[Any]:
    """When each output is freed at home; final outputs never are."""
    graph = model.instance.problem.graph
    forever = model.upper + 1
    ends: list[Any] = []
    for op in range(graph.num_ops):
        consumers = graph.successors(op).tolist()
        if not consumers:
            ends.append(forever)
            continue
        end = model.model.new_int_var(0, forever, "")
        model.model.add(end >= model.end[op])
        for consumer in consumers:
            for here, there in zip(model.on[op], model.on[consumer]):
                if here is not None and there is not None:
                    model.model.add(end >= model.end[consumer]).only_enforce_if([here, there])
        ends.append(end)
    for key, literal in model.moves.items():
        start, size = model.hops[key][-1]
        model.model.add(ends[key[0]] >= start + size).only_enforce_if(literal)
    return ends


def _copy_ends(model: PlacementModel) -> dict[tuple[int, int, int], Any]:
    """When each copy is freed on the device that it was sent to."""
    graph = model.instance.problem.graph
    ends: dict[tuple[int, int, int], Any] = {}
    for key, literal in model.moves.items():
        op, _, target = key
        start, size = model.hops[key][-1]
        end = model.model.new_int_var(0, model.upper + 1, "")
        model.model.add(end >= start + size).only_enforce_if(literal)
        for consumer in graph.successors(op).tolist():
            there = model.on[consumer][target]
            if there is not None:
                model.model.add(end >= model.end[consumer]).only_enforce_if([literal, there])
        ends[key] = end
    return ends
