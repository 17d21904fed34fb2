"""Checkpoints: everything that a resumed run needs to end as an uninterrupted one would."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from doppler.errors import CheckpointError
from doppler.policies import Policy, policy_from_document
from doppler.policies.torch_files import load_weights, read_table, read_torch_file, write_torch_file
from doppler.problem import PlacementProblem

FORMAT = "doppler-checkpoint"
VERSION = 1
PARTS = ("identity", "policy", "optimiser", "rng", "state")
"""Entries that every checkpoint has."""


def problem_identity(problem: PlacementProblem) -> dict[str, Any]:
    """Name, sizes and a hash of all numbers of a problem, to tell whether two are the same."""
    digest = hashlib.sha256()
    costs = problem.cost_model
    for array in (
        problem.graph.edges,
        costs.op_seconds,
        costs.transfer_volume,
        costs.link_latency,
        costs.link_seconds_per_unit,
        problem.topology.link_ends,
        problem.topology.compute_slots,
        problem.topology.memory_bytes,
    ):
        digest.update(np.ascontiguousarray(array).tobytes())
    if np.isfinite(problem.topology.memory_bytes).any() and problem.graph.output_bytes is not None:
        digest.update(np.ascontiguousarray(problem.graph.output_bytes).tobytes())
    if problem.constrained:
        for rule in (problem.pinned, problem.colocation, problem.input_ops):
            digest.update(b"none" if rule is None else np.ascontiguousarray(rule).tobytes())
    return {
        "name": problem.name,
        "num_ops": problem.num_ops,
        "num_devices": problem.num_devices,
        "sha256": digest.hexdigest(),
    }


def save_checkpoint(path: Path, identity: dict[str, Any], contents: dict[str, Any]) -> None:
    """Writes a checkpoint under a temporary name and renames it.

    Args:
        path: the file.
        identity: what a resumed run must share (problem, policy, stages, seed), nested dicts.
        contents: tensors, numbers, text and containers of them.
    """
    document = _plain({"format": FORMAT, "version": VERSION, "identity": identity, **contents})
    write_torch_file(path, document)


def load_checkpoint(path: Path, identity: dict[str, Any] | None = None) -> dict[str, Any]:
    """Reads a checkpoint and checks that it belongs to this run.

    Args:
        path: the file.
        identity: as in `save_checkpoint`; None takes any run's checkpoint.

    Raises:
        CheckpointError: missing, damaged, of another version, or of another run; the message
            names the first difference.
    """
    document = read_torch_file(path, "checkpoint", FORMAT, VERSION)
    for part in PARTS:
        read_table(document, part, path)
    if identity is not None:
        difference = _first_difference(document["identity"], identity, "")
        if difference:
            raise CheckpointError(f"{path} belongs to another run: {difference}")
    return document


def load_policy_from_checkpoint(path: str | Path) -> tuple[Policy, dict[str, Any]]:
    """Builds the policy that a checkpoint holds.

    Returns:
        The policy, and the identity of the run that trained it (problem, policy, stages, seed).

    Raises:
        CheckpointError: missing, damaged, or of another version; or its weights do not fit or are
            not finite.
    """
    document = load_checkpoint(Path(path))
    shape = read_table(document["identity"], "policy", f"{path}, identity")
    policy = policy_from_document(shape, path)
    load_weights(policy, document["policy"], f"{path}, policy")
    return policy, document["identity"]


def _plain(value: Any) -> Any:
    """Numpy scalars as Python numbers: a file that can run no code holds nothing else."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.item() if isinstance(value, np.generic) else value


def _first_difference(stored: Any, wanted: Any, where: str) -> str:
    if isinstance(stored, dict) and isinstance(wanted, dict):
        for key in sorted(set(stored) | set(wanted)):
            label = f"{where}.{key}" if where else str(key)
            if key not in stored or key not in wanted:
                side = "this run" if key not in wanted else "the checkpoint"
                return f"{label} is missing in {side}"
            difference = _first_difference(stored[key], wanted[key], label)
            if difference:
                return difference
        return ""
    if isinstance(stored, list) and isinstance(wanted, list) and len(stored) == len(wanted):
        pairs = enumerate(zip(stored, wanted))
        return next(
            filter(None, (_first_difference(s, w, f"{where}[{i}]") for i, (s, w) in pairs)), ""
        )
    return "" if stored == wanted else f"{where} is {stored!r} there, {wanted!r} here"
