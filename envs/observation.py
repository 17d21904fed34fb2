"""Observations: what a partial placement looks like, as flat, finite, clipped arrays."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces

from doppler.construction import Construction
from doppler.graph import b_levels, t_levels
from envs.task import PlacementTask

CLIP = 10.0
"""Times are clipped to [0, CLIP] time units."""


class Observer:
    """Turns a construction into observations of the space `space`.

    Times are in time units (see `PlacementTask`), so that 1 is all work on one device. The static
    part is repeated in every observation.

    Args:
        task: what is placed.
        batch_size: number of episodes of the constructions to observe.
    """

    def __init__(self, task: PlacementTask, batch_size: int) -> None:
        self._unit = task.time_unit
        self._num_ops = task.problem.num_ops
        self._static = {
            key: np.repeat(values[None], batch_size, axis=0)
            for key, values in _static_features(task).items()
        }
        self.space = _space(task, {key: values[0] for key, values in self._static.items()})

    def observe(self, c: Construction) -> dict[str, np.ndarray]:
        """Observations of all episodes, key by key in the order of the space. # (B, ...) each"""
        batch = c.batch_size
        observation = {
            "candidates": c.candidates.astype(np.int8),
            "devices": c.devices.copy(),
            "start": self._times(c.start),
            "finish": self._times(c.finish),
            "earliest_start": self._times(c.candidate_device_starts().reshape(batch, -1)),
            "device_compute": self._times(c.compute_placed),
            "device_free": self._times(c.device_free),
            "progress": (c.placed_counts[:, None] / self._num_ops).astype(np.float32),
            **{key: values.copy() for key, values in self._static.items()},
        }
        return {key: observation[key] for key in self.space}

    def _times(self, seconds: np.ndarray) -> np.ndarray:
        return np.clip(seconds / self._unit, 0.0, CLIP).astype(np.float32)


def _static_features(task: PlacementTask) -> dict[str, np.ndarray]:
    problem = task.problem
    graph, seconds = problem.graph, problem.mean_op_seconds
    transfers = problem.mean_transfer_seconds
    incoming = np.zeros(problem.num_ops)
    np.add.at(incoming, graph.edges[:, 1], transfers[graph.edges[:, 0]])
    times = {
        "op_seconds": problem.cost_model.op_seconds.reshape(-1),
        "b_level": b_levels(graph, seconds, transfers),
        "t_level": t_levels(graph, seconds, transfers),
        "input_transfers": incoming,
        "output_transfers": transfers * graph.out_degrees,
    }
    edges = graph.edges if graph.num_edges else np.full((1, 2), -1, np.int64)
    return {
        **{
            key: np.clip(values / task.time_unit, 0.0, CLIP).astype(np.float32)
            for key, values in times.items()
        },
        "edge_source": np.ascontiguousarray(edges[:, 0]),
        "edge_target": np.ascontiguousarray(edges[:, 1]),
    }


def _space(task: PlacementTask, static: dict[str, np.ndarray]) -> spaces.Dict:
    n, d = task.problem.num_ops, task.problem.num_devices

    def times(length: int) -> spaces.Box:
        return spaces.Box(0.0, CLIP, (length,), np.float32)

    fields: dict[str, spaces.Space] = {
        "candidates": spaces.MultiBinary(n),
        "devices": spaces.Box(-1, d - 1, (n,), np.int64),
        "start": times(n),
        "finish": times(n),
        "earliest_start": times(n * d),
        "device_compute": times(d),
        "device_free": times(d),
        "progress": spaces.Box(0.0, 1.0, (1,), np.float32),
    }
    for key, values in static.items():
        if key.startswith("edge_"):
            fields[key] = spaces.Box(-1, n - 1, values.shape, np.int64)
        else:
            fields[key] = times(len(values))
    return spaces.Dict(fields)
