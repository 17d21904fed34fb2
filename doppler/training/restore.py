"""Puts a checkpoint's contents back into a run, after checking every value of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from doppler import checks
from doppler.errors import CheckpointError, InvalidPlacementError
from doppler.policies.torch_files import check_tensor, load_weights, read_table
from doppler.problem import PlacementProblem
from doppler.training.measuring import check_measuring
from doppler.training.stage import Stage, is_number
from doppler.training.state import COUNTERS, TrainingState

if TYPE_CHECKING:
    from doppler.training.trainer import Trainer

_MOMENTS = ("exp_avg", "exp_avg_sq")
_CORE = {"lr", "betas", "eps", "weight_decay", "params"}


def restore(trainer: Trainer, document: Mapping[str, Any], path: Path) -> None:
    """Sets policy, optimiser, generator and state of a trainer from a checkpoint of its own run.

    Args:
        trainer: changed only where everything is sound.
        document: as `load_checkpoint` returned it.
        path: its file, for messages.

    Raises:
        CheckpointError: naming the file, the field and what is wrong with it.
    """
    state = _state(document["state"], trainer.problem, trainer.stages, f"{path}, state")
    _check_optimiser(document["optimiser"], trainer.optimiser, f"{path}, optimiser")
    try:
        trainer.rng.bit_generator.state = document["rng"]
    except (TypeError, ValueError, KeyError, OverflowError, AttributeError) as error:
        raise CheckpointError(
            f"{path}, rng: not the state of a {type(trainer.rng.bit_generator).__name__} "
            f"generator: {error!r}"
        ) from error
    load_weights(trainer.policy, document["policy"], f"{path}, policy")
    trainer.optimiser.load_state_dict(dict(document["optimiser"]))
    trainer.state = state


def _state(
    values: dict[str, Any], problem: PlacementProblem, stages: Sequence[Stage], where: str
) -> TrainingState:
    for label in (*COUNTERS, "archive", "initial", "incumbent", "results"):
        if label not in values:
            raise CheckpointError(f"{where}.{label}: is missing")
    for label in COUNTERS:
        _check_counter(values[label], label, f"{where}.{label}")
    stage, update = values["stage"], values["update"]
    if stage > len(stages):
        raise CheckpointError(f"{where}.stage: {stage}, but the run has {len(stages)} stages")
    most = stages[stage].num_updates if stage < len(stages) else 0
    if update > most:
        raise CheckpointError(f"{where}.update: {update}, but this stage has {most} updates")
    _check_archive(read_table(values, "archive", where), problem, f"{where}.archive")
    for label in ("initial", "incumbent"):
        if values[label] is not None:
            table = read_table(values, label, where)
            _check_row(table, "devices", problem, f"{where}.{label}")
            if table.get("order") is not None:
                _check_row(table, "order", problem, f"{where}.{label}")
            read_table(table, "info", f"{where}.{label}")
            table.setdefault("order", None)
    if values.get("measuring") is not None:  # runs of earlier versions have none
        table = read_table(values, "measuring", where)
        check_measuring(table, f"{where}.measuring")
        _check_rows(table["ledger"], problem, f"{where}.measuring.ledger")
    for name in read_table(values, "results", where):
        read_table(values["results"], name, f"{where}.results")
    return TrainingState.from_state_dict(values)


def _check_counter(value: Any, label: str, where: str) -> None:
    if label == "started":
        if not isinstance(value, bool):
            raise CheckpointError(f"{where}: {value!r} is not true or false")
    elif label == "reward_mean":  # log ratios may be below 0
        if not is_number(value):
            raise CheckpointError(f"{where}: {value!r} is not a finite number")
    elif label.endswith("seconds"):
        checks.number(value, where, CheckpointError, above=False)
    else:
        checks.whole_number(value, where, 0, CheckpointError)


def _check_archive(values: dict[str, Any], problem: PlacementProblem, where: str) -> None:
    capacity, makespans = values.get("capacity"), values.get("makespans")
    checks.whole_number(capacity, f"{where}.capacity", 1, CheckpointError)
    if not isinstance(makespans, list) or not all(is_number(v, least=0.0) for v in makespans):
        raise CheckpointError(f"{where}.makespans: not a list of finite seconds >= 0")
    if makespans != sorted(makespans):
        raise CheckpointError(f"{where}.makespans: do not ascend")
    for label, row_label in (("placements", "devices"), ("orders", "order")):
        rows = values.get(label)
        if not isinstance(rows, list) or len(rows) != len(makespans):
            raise CheckpointError(f"{where}.{label}: not a list of {len(makespans)} rows")
        for number, row in enumerate(rows):
            _check_row({row_label: row}, row_label, problem, f"{where}.{label}[{number}]")
    if values.get("target") is not None:  # runs of earlier versions have none
        target = read_table(values, "target", where)
        for label in ("devices", "order"):
            _check_row(target, label, problem, f"{where}.target")
        checks.number(
            target.get("makespan"), f"{where}.target.makespan", CheckpointError, above=False
        )


def _check_rows(ledger: dict[str, Any], problem: PlacementProblem, where: str) -> None:
    for number, (devices, order) in enumerate(
        zip(ledger["devices"], ledger["orders"], strict=True)
    ):
        _check_row({"devices": devices}, "devices", problem, f"{where}.devices[{number}]")
        _check_row({"order": order}, "order", problem, f"{where}.orders[{number}]")


def _check_row(table: dict[str, Any], label: str, problem: PlacementProblem, where: str) -> None:
    row = table.get(label)
    if not isinstance(row, Tensor) or row.dtype != torch.int64:
        raise CheckpointError(f"{where}, {label}: no tensor of whole numbers")
    try:
        (problem.check_placement if label == "devices" else problem.check_order)(row.numpy())
    except InvalidPlacementError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _check_optimiser(stored: dict[str, Any], optimiser: torch.optim.Optimizer, where: str) -> None:
    """Adam's moments must be finite and of the shapes of the weights that they belong to."""
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    groups, present = stored.get("param_groups"), optimiser.state_dict()["param_groups"]
    if not isinstance(groups, list) or len(groups) != len(present):
        raise CheckpointError(f"{where}.param_groups: not a list of {len(present)} groups")
    for number, (group, ours) in enumerate(zip(list(groups), present)):
        if not isinstance(group, dict) or not set(group) <= set(ours) or not set(group) >= _CORE:
            raise CheckpointError(f"{where}.param_groups[{number}]: not the settings of Adam")
        for key, found in group.items():
            wanted = list(ours[key]) if isinstance(ours[key], tuple) else ours[key]
            same = found == wanted
            if key == "lr":  # set before every update
                same = is_number(found, least=0.0)
            if not same:
                raise CheckpointError(f"{where}.param_groups[{number}].{key}: is {found!r}")
    entries: dict[Any, Any] = read_table(stored, "state", where)
    for index, entry in entries.items():
        place = f"{where}.state[{index!r}]"
        known = (
            isinstance(index, int) and not isinstance(index, bool) and 0 <= index < len(parameters)
        )
        if not known or not isinstance(entry, dict):
            raise CheckpointError(f"{place}: belongs to no weights of this policy")
        if set(entry) != {"step", *_MOMENTS}:
            raise CheckpointError(f"{place}: not the state of Adam")
        check_tensor(entry["step"], torch.tensor(0.0), f"{place}.step")
        for moment in _MOMENTS:
            check_tensor(entry[moment], parameters[index], f"{place}.{moment}")
