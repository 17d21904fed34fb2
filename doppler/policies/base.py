"""What every policy has: a shape, tables that are encoded once per update, and files."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from doppler.errors import CheckpointError, ConfigurationError
from doppler.policies.features import ProblemFeatures
from doppler.policies.torch_files import load_weights, read_table, read_torch_file, write_torch_file
from doppler.problem import PlacementProblem

FORMAT = "doppler-policy"
VERSION = 1
MOST = 65536
"""Of every width and count; more would only exhaust the memory."""
NEVER = -1e9
"""Logit of what may not be chosen: finite, so that 0 * log 0 stays 0, yet its probability is 0."""
FIRST_KIND = "doppler"
"""Of files that name no kind: they are older than the other kinds."""


@dataclass(frozen=True)
class Shape:
    """Widths, counts and switches of a policy; each field's default says which of these it is.

    A field that is not an argument, `kind`, tells the shapes of one kind of policy from others'.

    Raises:
        ConfigurationError: a width or count below 1 or above `MOST`, or a switch that is no bool.
    """

    def __post_init__(self) -> None:
        for field in fields(self):
            label, value = field.name, getattr(self, field.name)
            if not field.init:
                continue
            if isinstance(field.default, bool):
                if not isinstance(value, bool):
                    raise ConfigurationError(
                        f"policy, {label}: {value!r} is neither true nor false"
                    )
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigurationError(f"policy, {label}: {value!r} is not a whole number >= 1")
            if value > MOST:
                raise ConfigurationError(f"policy, {label}: {value!r} is above {MOST}")

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Self:
        """Reads a shape, refusing unknown names."""
        known = {field.name for field in fields(cls) if field.init}
        unknown = sorted(set(values) - known)
        if unknown:
            raise ConfigurationError(
                f"policy: unknown option {unknown[0]!r}; the options are {', '.join(sorted(known))}"
            )
        return cls(**values)

    @classmethod
    def from_document(cls, values: dict[str, Any], where: str | Path) -> Self:
        """Reads the shape that a file holds, which has every option.

        Raises:
            CheckpointError: naming the file, if an option is missing, unknown or impossible.
        """
        for field in fields(cls):
            if field.init and field.name not in values:
                raise CheckpointError(f"{where}, policy {field.name}: is missing")
        try:
            return cls.from_dict(values)
        except ConfigurationError as error:
            raise CheckpointError(f"{where}, {error}") from error


class PolicyTables(NamedTuple):
    """All that the heads look up during an episode; the last row belongs to no op (padding)."""

    sel_scores: Tensor  # (num_ops + 1,) state-independent part of SEL's logits
    sel_gains: Tensor  # (num_ops + 1, sel state features) how each op's logit answers to them
    plc_ops: Tensor  # (num_ops + 1, head_width) PLC's first layer, the op's part
    plc_pool: Tensor  # (num_ops + 1, head_width) PLC's first layer, before pooling per device


class Policy(nn.Module):
    """The common interface of all policies.

    A subclass names its `kind`, its `config_type` and how its episodes are built, makes its parts
    in `build` and fills the tables in `encode`. Nothing in the parameters may depend on a graph,
    its size or the number of devices.

    Args:
        config: its shape, of `config_type`; None for the defaults.
        seed: of the initial weights; the global generator is left as it was.

    Attributes:
        episodes: how its episodes are built, a name in `doppler.training.runners.RUNNERS`.
        num_device_features: columns of the device features that `plc` reads.
        num_state_features: columns of a candidate's features that are read.
        plc: makes logits of devices from rows of the tables; see `heads.PlcHead.forward`.

    Raises:
        ConfigurationError: the shape of another kind of policy.
    """

    kind: ClassVar[str] = ""
    config_type: ClassVar[type[Shape]] = Shape
    episodes: ClassVar[str] = "select_and_place"
    kinds: ClassVar[dict[str, type[Policy]]] = {}

    config: Shape
    num_device_features: int = 0
    num_state_features: int = 0
    plc: nn.Module

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "kind" in vars(cls):
            Policy.kinds[cls.kind] = cls

    def __init__(self, config: Shape | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = self.config_type() if config is None else config
        if type(self.config) is not self.config_type:
            raise ConfigurationError(
                f"policy {self.kind!r}, config: a {type(self.config).__name__} is the shape of "
                f"another policy; this one needs a {self.config_type.__name__}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            last_layers = self.build()
        with torch.no_grad():  # near-uniform at first, whatever the graph
            for layer in last_layers:
                layer.weight.mul_(0.1)
                layer.bias.zero_()

    def build(self) -> list[nn.Linear]:
        """Makes all parts; returns the layers that end in logits."""
        raise NotImplementedError

    def features(self, problem: PlacementProblem) -> ProblemFeatures:
        """The problem's features as this policy reads them; compute once per problem."""
        raise NotImplementedError

    def encode(self, features: ProblemFeatures) -> PolicyTables:
        """Runs message passing and everything else that is the same for a whole episode."""
        raise NotImplementedError

    def order(self, problem: PlacementProblem) -> np.ndarray | None:
        """The order in which this policy walks the ops, None if it selects them. # (num_ops,)"""
        return None

    def save(self, path: str | Path) -> None:
        """Writes shape and weights."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "config": asdict(self.config),
            "weights": self.state_dict(),
        }
        write_torch_file(path, document)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file written by `save`; called on `Policy`, it takes every kind.

        Raises:
            CheckpointError: missing, damaged, not a policy file of this version, of another kind,
                or with weights that do not fit its shape or are not finite.
        """
        document = read_torch_file(path, "policy file", FORMAT, VERSION)
        policy = policy_from_document(read_table(document, "config", path), path)
        if not isinstance(policy, cls):
            raise CheckpointError(
                f"{path}, config: holds a policy of kind {policy.kind!r}, not {cls.kind!r}"
            )
        load_weights(policy, read_table(document, "weights", path), f"{path}, weights")
        return policy


def policy_from_document(values: dict[str, Any], where: str | Path) -> Policy:
    """A policy of the kind and shape that a file holds, with fresh weights.

    Raises:
        CheckpointError: naming the file, if the kind is unknown or an option is missing, unknown
            or impossible.
    """
    kind = values.get("kind", FIRST_KIND)
    if not isinstance(kind, str) or kind not in Policy.kinds:
        raise CheckpointError(
            f"{where}, policy kind: {kind!r} is not one of {', '.join(sorted(Policy.kinds))}"
        )
    policy_type = Policy.kinds[kind]
    options = {name: value for name, value in values.items() if name != "kind"}
    return policy_type(policy_type.config_type.from_document(options, where))


def padded(rows: Tensor) -> Tensor:
    """Rows of the ops, and a row of zeros that belongs to none."""
    return torch.cat([rows, rows.new_zeros(1, rows.shape[1])])


def nothing_to_select(num_ops: int) -> tuple[Tensor, Tensor]:
    """`sel_scores` and `sel_gains` of a policy that does not choose among ops."""
    scores = torch.zeros(num_ops + 1)
    scores[-1] = NEVER
    return scores, torch.zeros(num_ops + 1, 0)
