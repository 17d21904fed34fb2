"""The message-passing encoder: edge-conditioned messages and a GRU update (Gilmer et al. 2017).

In the original the edge network turns each edge's features into a full matrix, 64 x 64 numbers per
edge and round. Here the matrix is a mixture of `edge_rank` shared ones whose weights come from the
edge network; the weights do not depend on the round, so they are computed once, and the shared
matrices multiply ops, of which there are fewer than edges.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from doppler.policies.features import ProblemFeatures


class EdgeMixtureConv(MessagePassing):
    """Mean over neighbours u of sum_k weight_k(u -> v) W_k h(u).

    Args:
        width: of the embeddings.
        edge_rank: number of shared matrices W_k.
    """

    def __init__(self, width: int, edge_rank: int) -> None:
        super().__init__(aggr="mean")
        self.width = width
        self.edge_rank = edge_rank
        self.mix = nn.Linear(width, edge_rank * width, bias=False)

    def forward(self, hidden: Tensor, edge_ends: Tensor, edge_weights: Tensor) -> Tensor:
        """Args: (num_ops, width), (2, messages), (messages, edge_rank). Returns (num_ops, width)"""
        return self.propagate(
            edge_ends, mixed=self.mix(hidden), edge_weights=edge_weights, size=(len(hidden),) * 2
        )

    def message(self, mixed_j: Tensor, edge_weights: Tensor) -> Tensor:
        """Weighs the shared products of each edge's source. Returns (messages, width)"""
        parts = mixed_j.view(-1, self.edge_rank, self.width)  # (messages, rank, width)
        return torch.bmm(edge_weights[:, None, :], parts).squeeze(1)


class GraphEncoder(nn.Module):
    """Embeds every op of a graph in `rounds` rounds of message passing.

    Args:
        num_features: op features.
        num_edge_features: edge features.
        width: of the embeddings (the paper: 128).
        rounds: of message passing (the paper: 6).
        edge_rank: shared matrices in an edge's mixture.
    """

    def __init__(
        self, num_features: int, num_edge_features: int, width: int, rounds: int, edge_rank: int
    ) -> None:
        super().__init__()
        self.rounds = rounds
        self.embed = nn.Linear(num_features, width)
        self.edge_network = nn.Sequential(
            nn.Linear(num_edge_features, width), nn.LeakyReLU(), nn.Linear(width, edge_rank)
        )
        self.conv = EdgeMixtureConv(width, edge_rank)
        self.update = nn.GRUCell(width, width)

    def forward(self, features: ProblemFeatures) -> Tensor:
        """Returns the ops' embeddings. # (num_ops, width)"""
        hidden = nn.functional.leaky_relu(self.embed(features.op_features))
        weights = self.edge_network(features.edge_features)  # (messages, edge_rank), every round's
        for _ in range(self.rounds):
            hidden = self.update(self.conv(hidden, features.edge_ends, weights), hidden)
        return hidden
