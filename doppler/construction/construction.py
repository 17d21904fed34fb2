"""The partial placement that grows op by op, many episodes of one problem at a time."""

from __future__ import annotations

import numpy as np

from doppler.construction import kernel, list_scheduling
from doppler.construction.arrays import StateArrays, make_problem_arrays, make_state_arrays
from doppler.errors import ConfigurationError, InvalidPlacementError
from doppler.problem import PlacementProblem


class Construction:
    """`B` partial placements of one problem and an estimate of when their ops run.

    The estimate is list scheduling in the order of the steps: an op starts once its device has a
    free slot and all its inputs have arrived; it never moves into a gap before an op that was
    placed earlier. An input that sits on another device is sent when its first consumer there is
    placed, once per (tensor, device); transfers of one op queue by (finish of the producer, id).
    Under `contention_free` a transfer takes the route's latency plus volume times rate; under
    `serial_links` it goes hop by hop and waits for each directed link; under `one_port`, for the
    sending and the receiving port at the hop's ends; under `shared_bus`, for the link's bus.

    Pinned ops may go on their device only, ops of a colocation group where the first of them that
    was placed went. An op that stands for an input starts at 0, on whichever device.

    It is an estimate: an executor chooses among *ready* ops, so its order may differ.

    A step costs O(inputs + consumers of the op), a row of `earliest_starts` O(inputs * D).
    Memory is about 50 bytes per (episode, op), plus 12 bytes per (episode, edge) at most where
    links can be busy: 10 000 ops, 20 000 edges and 64 episodes take 50 MB.

    Not safe for use by two threads at once; use one object per thread (kernels release the GIL).

    Args:
        problem: what is placed.
        network: a model of `doppler.simulator.NETWORKS`.
        batch_size: number of episodes B, at least 1.

    Attributes (arrays that the kernels update in place; copy what must outlive a step):
        candidates: unplaced ops all of whose predecessors are placed. # (B, N) bool
        devices: device of each op, -1 where unplaced. # (B, N)
        order: op of each step, -1 from the present step on. # (B, N)
        start, finish: estimated times of placed ops, 0 elsewhere. # (B, N) [s]
        device_free: when each device's first slot is free. # (B, D) [s]
        compute_placed: seconds of the ops placed on each device. # (B, D) [s]
        placed_counts: ops placed in each episode. # (B,)
        arrays: the problem, for kernels; never changed.

    Raises:
        ConfigurationError: an unknown network, or a batch size below 1.
        InvalidProblemError: inputs that are no ops yet (`PlacementProblem.with_explicit_inputs`).
    """

    def __init__(
        self, problem: PlacementProblem, network: str = "serial_links", batch_size: int = 1
    ) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"construction, batch_size: {batch_size} is not at least 1")
        problem.check_explicit()
        self.problem = problem
        self.network = network
        self.batch_size = int(batch_size)
        self._compute_slots = np.array(problem.topology.compute_slots, np.int64)
        self._p = self.arrays = make_problem_arrays(problem, network)
        self._s = make_state_arrays(problem, self._p, self.batch_size)
        self.candidates = self._s.candidates
        self.devices = self._s.devices
        self.order = self._s.order
        self.start = self._s.start
        self.finish = self._s.finish
        self.device_free = self._s.device_free
        self.compute_placed = self._s.compute_placed
        self.placed_counts = self._s.counts
        self.reset()

    def state_with_own_scratch(self) -> StateArrays:
        """The state for a kernel that works on episodes of its own beside other threads."""
        scratch = ("sorted_preds", "journal_index", "journal_time")
        return self._s._replace(**{name: getattr(self._s, name).copy() for name in scratch})

    @property
    def num_placed(self) -> int:
        """Ops placed in every episode: the least of `placed_counts`."""
        return int(self._s.counts.min())

    @property
    def done(self) -> bool:
        """Whether every episode is complete."""
        return self.num_placed == self.problem.num_ops

    def reset(self, episodes: np.ndarray | None = None) -> None:
        """Empties all episodes, or those where the mask `episodes` (B,) is true."""
        mask = np.ones(self.batch_size, bool) if episodes is None else np.asarray(episodes, bool)
        if mask.shape != (self.batch_size,):
            raise ConfigurationError(
                f"construction, reset mask: shape {mask.shape}, expected ({self.batch_size},)"
            )
        kernel.reset(self._p, self._s, self._compute_slots, mask)

    def step(self, ops: np.ndarray, devices: np.ndarray) -> None:
        """Places one op in every episode; nothing changes if any of them is illegal.

        Args:
            ops: a candidate of each episode, or -1 to leave that episode as it is. # (B,)
            devices: # (B,)

        Raises:
            InvalidPlacementError: an op that is no candidate, or a device that does not exist or
                that a pin or a group forbids; the message names episode and op.
        """
        chosen = self._indices(ops, "ops")
        targets = self._indices(devices, "devices")
        episode = kernel.first_illegal(self._p, self._s, chosen, targets)
        if episode != kernel.OK:
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}, construction, episode {episode}: "
                + self.why_illegal(episode, int(chosen[episode]), int(targets[episode]))
            )
        kernel.step(self._p, self._s, chosen, targets)

    def why_illegal(self, episode: int, op: int, device: int) -> str:
        """Why `op` may not go on `device` now, or "" if it may."""
        num_ops, num_devices = self.problem.num_ops, self.problem.num_devices
        if not 0 <= op < num_ops:
            return f"op {op} does not exist, ops are numbered 0 to {num_ops - 1}"
        if self.devices[episode, op] >= 0:
            return f"op {op} is already placed, on device {self.devices[episode, op]}"
        if not self.candidates[episode, op]:
            preds = self.problem.graph.predecessors(op)
            waiting = preds[self.devices[episode, preds] < 0]
            return f"op {op} is not a candidate, its predecessor op {waiting[0]} is not placed"
        if not 0 <= device < num_devices:
            return (
                f"op {op}: device {device} does not exist, devices are numbered 0 to "
                f"{num_devices - 1}"
            )
        required = self._required_devices(np.array([episode]), np.array([op]))[0]
        if required >= 0 and required != device:
            reason = self.problem.constraints.reason(op, int(required))
            return f"op {op} may not go on device {device}, {reason}"
        return ""

    def allowed_devices(self, ops: np.ndarray) -> np.ndarray:
        """Devices on which pins and groups allow each episode's op.

        Args:
            ops: a candidate of each episode, or -1 for a row of False. # (B,)

        Returns:
            # (B, D) bool

        Raises:
            InvalidPlacementError: an op that is no candidate.
        """
        chosen = self._candidates_of(ops)
        required = self._required_devices(np.arange(self.batch_size), chosen)[:, None]
        allowed = (required < 0) | (required == np.arange(self.problem.num_devices))
        allowed[chosen < 0] = False
        return allowed

    def legal_pairs(self) -> np.ndarray:
        """Which op may be placed on which device now. # (B, N, D) bool"""
        episodes = np.arange(self.batch_size)[:, None]
        required = self._required_devices(episodes, np.arange(self.problem.num_ops))[:, :, None]
        allowed = (required < 0) | (required == np.arange(self.problem.num_devices))
        legal: np.ndarray = allowed & self.candidates[:, :, None]
        return legal

    def earliest_starts(self, ops: np.ndarray) -> np.ndarray:
        """Estimated start of each episode's op on each device: device free, all inputs arrived.

        Args:
            ops: a candidate of each episode, or -1 for a row of zeros. # (B,)

        Returns:
            # (B, D) [s]

        Raises:
            InvalidPlacementError: an op that is no candidate.
        """
        out = np.empty((self.batch_size, self.problem.num_devices))
        kernel.earliest_starts(self._p, self._s, self._candidates_of(ops), out)
        return out

    def device_features(self, ops: np.ndarray) -> np.ndarray:
        """The five features of each device for each episode's op (Yao et al. 2026).

        In this order: compute of all ops placed on the device; compute of the op's predecessors
        there; earliest start among these; latest finish among these (both 0 where there are none);
        earliest start of the op there.

        Args:
            ops: a candidate of each episode, or -1 for zeros. # (B,)

        Returns:
            # (B, D, 5) [s]

        Raises:
            InvalidPlacementError: an op that is no candidate.
        """
        shape = (self.batch_size, self.problem.num_devices, kernel.NUM_DEVICE_FEATURES)
        out = np.empty(shape)
        kernel.device_features(self._p, self._s, self._candidates_of(ops), out)
        return out

    def candidate_earliest_starts(self) -> np.ndarray:
        """Earliest start of each candidate where it may go, infinite elsewhere. # (B, N) [s]"""
        out = np.empty((self.batch_size, self.problem.num_ops))
        kernel.candidate_earliest_starts(self._p, self._s, out)
        return out

    def candidate_device_starts(self) -> np.ndarray:
        """Earliest start of each candidate on each device, 0 for other ops. # (B, N, D) [s]"""
        out = np.empty((self.batch_size, self.problem.num_ops, self.problem.num_devices))
        kernel.candidate_device_starts(self._p, self._s, out)
        return out

    def list_schedule(self, priorities: np.ndarray, seeds: np.ndarray | None = None) -> None:
        """Completes all episodes in one call: highest priority first, earliest start wins.

        Args:
            priorities: # (N,)
            seeds: of random ties between ops and between devices, one per episode; 0 (and None)
                breaks ties by id. # (B,) uint64
        """
        keys = np.asarray(priorities, np.float64)
        if keys.shape != (self.problem.num_ops,) or not np.isfinite(keys).all():
            raise ConfigurationError(
                f"construction, priorities: {self.problem.num_ops} finite values are needed"
            )
        tie_seeds = np.zeros(self.batch_size, np.uint64)
        if seeds is not None:
            tie_seeds[:] = seeds
        heap = np.empty(self.problem.num_ops, np.int64)
        tie_keys = np.empty(self.problem.num_ops, np.uint64)
        list_scheduling.list_schedule(self._p, self._s, keys, tie_seeds, heap, tie_keys)

    def _required_devices(self, episodes: np.ndarray, ops: np.ndarray) -> np.ndarray:
        """Where pins and groups want ops, -1 where they leave it open. # as broadcast"""
        if not self.problem.constrained:
            return np.full(np.broadcast_shapes(episodes.shape, ops.shape), -1)
        block = self._p.block[ops]
        required: np.ndarray = np.where(block >= 0, self._s.block_device[episodes, block], -1)
        return required

    def _indices(self, values: np.ndarray, label: str) -> np.ndarray:
        array = np.asarray(values)
        if array.shape != (self.batch_size,) or array.dtype.kind not in "iu":
            raise InvalidPlacementError(
                f"construction, {label}: {array.dtype} of shape {array.shape}, expected whole "
                f"numbers of shape ({self.batch_size},), one per episode"
            )
        return np.ascontiguousarray(array, np.int64)

    def _candidates_of(self, ops: np.ndarray) -> np.ndarray:
        chosen = self._indices(ops, "ops")
        episode = kernel.first_illegal(self._p, self._s, chosen, chosen[:0])
        if episode != kernel.OK:
            raise InvalidPlacementError(
                f"problem {self.problem.name!r}, construction, episode {episode}: "
                + self.why_illegal(episode, int(chosen[episode]), 0)
            )
        return chosen
