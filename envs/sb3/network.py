"""Scores of all (op, device) pairs and a value, from our graph encoder and an observation.

The graph is the same in every state, so it is encoded once per batch of states; a state adds what
its observation says of candidates, devices and earliest starts. Pair scores are a sum of an op's, a
device's and a pair's part before one nonlinearity, so that nothing in the parameters depends on a
graph, its size or the number of devices.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from doppler.checks import whole_number
from doppler.errors import ConfigurationError
from doppler.policies import ProblemFeatures
from doppler.policies.encoder import GraphEncoder
from doppler.policies.features import EDGE_COLUMNS, EXTRA_OP_COLUMNS, PAPER_OP_COLUMNS
from doppler.problem import PlacementProblem

KEYS = (
    "b_level",
    "candidates",
    "device_compute",
    "device_free",
    "devices",
    "earliest_start",
    "progress",
)
"""What is read of an observation of `doppler/PlacementFlat-v0`; the rest follows from the graph."""
_MOST = 65536
_DEVICE_FEATURES, _PAIR_FEATURES, _STATE_FEATURES = 3, 4, 5


@dataclass(frozen=True)
class ActorCriticConfig:
    """Shape of the network.

    Args:
        hidden_width: of the op embeddings.
        message_rounds: of the encoder.
        edge_rank: shared matrices in the encoder's edge mixture.
        head_width: hidden width of the scores and of the critic.

    Raises:
        ConfigurationError: a value below 1 or far too large.
    """

    hidden_width: int = 64
    message_rounds: int = 4
    edge_rank: int = 4
    head_width: int = 64

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            whole_number(value, f"policy, {field.name}", 1, ConfigurationError, _MOST)


class GraphTables(NamedTuple):
    """What the encoder says of the ops, the same for every state."""

    op_rows: Tensor  # (num_ops, head_width) an op's part of its pairs' scores
    placed_rows: Tensor  # (num_ops, head_width) a placed op's part of its device's scores
    illegal_scores: Tensor  # (num_ops,) of ops that are no candidates
    critic_rows: Tensor  # (num_ops, 2 * head_width) the critic's part of candidates, placed ops


class _Candidates(NamedTuple):
    """The candidates of all states, one after the other."""

    states: Tensor  # (candidates,) which state each belongs to
    ops: Tensor  # (candidates,)
    features: Tensor  # (candidates, num_devices, pair features)
    bounds: Tensor  # (states,) the longest path through a candidate, in time units


class ActorCritic(nn.Module):
    """Encoder, pair scores and critic.

    Args:
        config: its shape.
        seed: of the initial weights; the global generator is left as it was.
    """

    def __init__(self, config: ActorCriticConfig | None = None, seed: int = 0) -> None:
        super().__init__()
        self.config = config or ActorCriticConfig()
        width, head = self.config.hidden_width, self.config.head_width
        num_op_features = len(PAPER_OP_COLUMNS) + len(EXTRA_OP_COLUMNS)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.encoder = GraphEncoder(
                num_op_features,
                len(EDGE_COLUMNS),
                width,
                self.config.message_rounds,
                self.config.edge_rank,
            )
            self.embed_raw = nn.Linear(num_op_features, width)
            self.of_op = nn.Linear(4 * width, head)
            self.of_placed = nn.Linear(width, head, bias=False)
            self.of_device = nn.Linear(_DEVICE_FEATURES, head, bias=False)
            self.of_pair = nn.Linear(_PAIR_FEATURES, head, bias=False)
            self.score = nn.Linear(head, 1)
            self.illegal_score = nn.Linear(head, 1)
            self.critic_op = nn.Linear(width, 2 * head, bias=False)
            self.critic_state = nn.Linear(_STATE_FEATURES, head)
            value = nn.Linear(head, 1)
            self.critic = nn.Sequential(
                nn.LeakyReLU(), nn.Linear(head, head), nn.LeakyReLU(), value
            )
        with torch.no_grad():  # near-uniform at first, whatever the graph
            for last in (self.score, self.illegal_score, value):
                last.weight.mul_(0.1)
                last.bias.zero_()

    def features(self, problem: PlacementProblem) -> ProblemFeatures:
        """The problem's features as this network reads them; compute once per problem."""
        return ProblemFeatures.from_problem(problem)

    def encode_graph(self, features: ProblemFeatures) -> GraphTables:
        """Runs message passing and everything else that is the same for all states."""
        embedded = self.encoder(features)  # (num_ops, width)
        raw = nn.functional.leaky_relu(self.embed_raw(features.op_features))
        paths = (features.to_exit.mean(embedded), features.to_entry.mean(embedded))
        op_rows = self.of_op(torch.cat([embedded, *paths, raw], dim=1))
        return GraphTables(
            op_rows=op_rows,
            placed_rows=self.of_placed(embedded),
            illegal_scores=self.illegal_score(nn.functional.leaky_relu(op_rows)).squeeze(-1),
            critic_rows=self.critic_op(embedded),
        )

    def forward(
        self, tables: GraphTables, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Scores pairs and values states.

        Args:
            tables: of this network.
            observations: float tensors of `KEYS`, a row per state.

        Returns:
            Logits # (states, num_ops, num_devices) and values # (states,), in time units. A pair
            whose op is no candidate has a logit too, its op's: masks are for others to apply.
        """
        free = observations["device_free"]
        found = _candidates(observations)
        placed = _on_devices(observations["devices"], free.shape[1])  # (states, devices, ops)
        counts = placed.sum(dim=2, keepdim=True)
        pooled = placed @ tables.placed_rows / counts.clamp(min=1.0)
        device_rows = pooled + self.of_device(_device_features(observations))
        scores = self._scores(tables.op_rows, device_rows, found)
        shape = (len(free), len(tables.op_rows), free.shape[1])
        logits = tables.illegal_scores[None, :, None].expand(shape).clone()
        logits[found.states, found.ops] = scores
        return logits, self._values(tables, observations, found, placed.sum(dim=1))

    def _scores(self, op_rows: Tensor, device_rows: Tensor, found: _Candidates) -> Tensor:
        """Of every candidate on every device. # (candidates, num_devices)

        The rows are the largest tensors by far: parts are added in place, where they are.
        """
        rows = device_rows.index_select(0, found.states)  # (candidates, num_devices, head_width)
        rows += op_rows.index_select(0, found.ops)[:, None]
        flat = torch.addmm(
            rows.flatten(0, 1), found.features.flatten(0, 1), self.of_pair.weight.t()
        )
        hidden = nn.functional.leaky_relu(flat, inplace=True)
        scores = torch.mv(hidden, self.score.weight[0]) + self.score.bias
        return scores.view(rows.shape[:2])

    def _values(
        self,
        tables: GraphTables,
        observations: Mapping[str, Tensor],
        found: _Candidates,
        placed: Tensor,
    ) -> Tensor:
        """What is still to come of each state, in time units. # (states,)"""
        of_candidates, of_placed = tables.critic_rows.chunk(2, dim=1)
        candidates = observations["candidates"]
        pooled = _mean_rows(candidates, of_candidates) + _mean_rows(placed, of_placed)
        free, compute = observations["device_free"], observations["device_compute"]
        devices = free.shape[1]
        state = torch.stack(
            [
                observations["progress"][:, 0],
                devices * free.amax(dim=1),
                devices * free.mean(dim=1),
                devices * compute.amax(dim=1),
                devices * found.bounds,
            ],
            dim=1,
        )
        values: Tensor = self.critic(pooled + self.critic_state(state))
        return values.squeeze(-1)


def legal_logits(logits: Tensor, masks: Tensor) -> Tensor:
    """Flat logits with those of illegal pairs minus infinity. # (states, pairs) each"""
    return torch.where(masks, logits.flatten(1), -torch.inf)


def as_tensors(observation: Mapping[str, Any]) -> dict[str, Tensor]:
    """The `KEYS` of a batched observation as float tensors."""
    return {key: torch.as_tensor(observation[key]).float() for key in KEYS}


def _candidates(observations: Mapping[str, Tensor]) -> _Candidates:
    """Lists the candidates and how their starts compare; times are in mean op durations."""
    free = observations["device_free"]
    states, ops = observations["candidates"].nonzero(as_tuple=True)
    num_states, num_devices = free.shape
    num_ops = observations["candidates"].shape[1]
    starts = observations["earliest_start"].view(num_states, num_ops, num_devices)[states, ops]
    ends = starts + observations["b_level"][states, ops][:, None]  # (candidates, devices)
    best, length = starts.amin(dim=1), ends.amin(dim=1)
    none = free.new_zeros(num_states)
    first = none.scatter_reduce(0, states, best, "amin", include_self=False)
    bounds = none.scatter_reduce(0, states, length, "amax", include_self=False)
    features = torch.stack(
        [
            starts - best[:, None],
            starts - free[states],
            starts - first[states][:, None],
            bounds[states][:, None] - ends,
        ],
        dim=2,
    )
    return _Candidates(states, ops, _signed_log(num_ops * features), bounds)


def _device_features(observations: Mapping[str, Tensor]) -> Tensor:
    """Load and use of each device. # (states, num_devices, device features)"""
    free, compute = observations["device_free"], observations["device_compute"]
    num_ops, devices = observations["candidates"].shape[1], free.shape[1]
    behind = _signed_log(num_ops * (free - free.amin(dim=1, keepdim=True)))
    return torch.stack([devices * free, devices * compute, behind], dim=2)


def _on_devices(devices: Tensor, num_devices: int) -> Tensor:
    """1 where an op is on a device. # (states, num_ops) -> (states, num_devices, num_ops)"""
    numbers = torch.arange(num_devices, dtype=devices.dtype)
    return (devices[:, None, :] == numbers[None, :, None]).to(devices.dtype)


def _mean_rows(members: Tensor, rows: Tensor) -> Tensor:
    """Mean row of each state's members. # (states, num_ops), (num_ops, w) -> (states, w)"""
    return members @ rows / members.sum(dim=1, keepdim=True).clamp(min=1.0)


def _signed_log(values: Tensor) -> Tensor:
    """Near zero the identity, far away logarithmic, so that outliers stay readable."""
    return values.sign() * values.abs().log1p()
