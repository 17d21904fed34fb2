"""Where ops must run: pinned to a device, or together with others of a colocation group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from doppler.errors import InvalidProblemError


@dataclass(frozen=True, eq=False)
class Constraints:
    """The pins and colocation groups of a problem as blocks of ops that share a device.

    Args:
        pinned: device of each op, -1 where it is free. # (num_ops,)
        colocation: group of each op, -1 where it is in none. # (num_ops,)
        block: a number for each group and each pinned op outside groups, -1 elsewhere. # (num_ops,)
        block_device: where each block is pinned, or -1. # (num_blocks,)
        leader: the op whose device each op shares: the first of its block that is no input op in
            topological order, else itself. # (num_ops,)
    """

    pinned: np.ndarray
    colocation: np.ndarray
    block: np.ndarray
    block_device: np.ndarray
    leader: np.ndarray

    @property
    def any(self) -> bool:
        """Whether there are any constraints."""
        return len(self.block_device) > 0

    def required(self, placements: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ops in blocks, and where they belong given where their leaders are.

        Args:
            placements: # (..., num_ops)

        Returns:
            # (num_members,), (..., num_members)
        """
        members = np.flatnonzero(self.block >= 0)
        pins = self.block_device[self.block[members]]
        return members, np.where(pins >= 0, pins, placements[..., self.leader[members]])

    def first_violation(self, placements: np.ndarray) -> tuple[int, int, int] | None:
        """Row, op and required device of the first op on a wrong device. # (batch, num_ops)"""
        if not self.any:
            return None
        members, required = self.required(placements)
        wrong = placements[:, members] != required
        if not wrong.any():
            return None
        row, member = np.argwhere(wrong)[0]
        return int(row), int(members[member]), int(required[row, member])

    def reason(self, op: int, device: int) -> str:
        """Why `op` must be on `device`."""
        if self.pinned[op] >= 0:
            return f"it is pinned to device {device}"
        group = self.colocation[op]
        if self.block_device[self.block[op]] >= 0:
            others = np.flatnonzero((self.colocation == group) & (self.pinned >= 0))
            return f"op {others[0]} of its colocation group {group} is pinned to device {device}"
        return f"the ops of its colocation group {group} are on device {device}"


def make_constraints(
    name: str,
    num_devices: int,
    topological_order: np.ndarray,
    pinned: np.ndarray,
    colocation: np.ndarray,
    input_ops: np.ndarray,
) -> Constraints:
    """Checks pins and groups and numbers their blocks.

    Args:
        name: of the problem, for messages.
        num_devices: devices are numbered below it.
        topological_order: of the ops. # (num_ops,)
        pinned, colocation: see `Constraints`. # (num_ops,)
        input_ops: ops that stand for inputs; they follow, others lead. # (num_ops,) bool

    Raises:
        InvalidProblemError: a device that does not exist, a negative group, or two pins in a group.
    """
    for op in np.flatnonzero((pinned < -1) | (pinned >= num_devices))[:1]:
        raise InvalidProblemError(
            f"problem {name!r}, pinned, op {op}: device {pinned[op]}; devices are numbered 0 to "
            f"{num_devices - 1}, -1 leaves an op free"
        )
    for op in np.flatnonzero(colocation < -1)[:1]:
        raise InvalidProblemError(
            f"problem {name!r}, colocation, op {op}: {colocation[op]} is neither a group >= 0 nor "
            "-1 for none"
        )
    block = np.full(len(pinned), -1, np.int64)
    grouped = colocation >= 0
    groups, block[grouped] = np.unique(colocation[grouped], return_inverse=True)
    alone = np.flatnonzero(~grouped & (pinned >= 0))
    block[alone] = len(groups) + np.arange(len(alone))
    block_device = np.full(len(groups) + len(alone), -1, np.int64)
    first_pinned: dict[int, int] = {}
    for op in np.flatnonzero(pinned >= 0).tolist():
        first = first_pinned.setdefault(int(block[op]), op)
        if pinned[op] != pinned[first]:
            raise InvalidProblemError(
                f"problem {name!r}, colocation group {colocation[op]}: op {first} is pinned to "
                f"device {pinned[first]}, op {op} to device {pinned[op]}"
            )
        block_device[block[op]] = pinned[op]
    leader = np.arange(len(pinned))
    position = np.empty(len(pinned), np.int64)
    position[topological_order] = np.arange(len(pinned))
    members = np.flatnonzero(grouped)
    by_rank = members[np.lexsort((position[members], input_ops[members], block[members]))]
    _, firsts = np.unique(block[by_rank], return_index=True)
    leader[members] = by_rank[firsts][block[members]]
    for array in (pinned, colocation, block, block_device, leader):
        array.setflags(write=False)
    return Constraints(pinned, colocation, block, block_device, leader)
