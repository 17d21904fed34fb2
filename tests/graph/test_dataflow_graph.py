"""Graph validation, levels and critical paths against values worked out by hand."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doppler.errors import InvalidGraphError, UnknownQuantityError
from doppler.graph import DataflowGraph, b_levels, critical_path, path_successors, t_levels

#        0 (2)          seconds in brackets; leaving an op costs 1, leaving op 1 costs 5
#       /     \
#   1 (3)     2 (4)
#       \     /  \
#        3 (1)    4 (6)
DIAMOND = [(0, 1), (0, 2), (1, 3), (2, 3), (2, 4)]
SECONDS = np.array([2.0, 3.0, 4.0, 1.0, 6.0])
TRANSFER = np.array([1.0, 5.0, 1.0, 1.0, 1.0])


@pytest.fixture
def diamond() -> DataflowGraph:
    return DataflowGraph.from_edges("diamond", 5, DIAMOND)


def test_levels_without_communication(diamond: DataflowGraph) -> None:
    assert b_levels(diamond, SECONDS).tolist() == [12, 4, 10, 1, 6]
    assert t_levels(diamond, SECONDS).tolist() == [0, 2, 2, 6, 6]
    assert critical_path(diamond, SECONDS).tolist() == [0, 2, 4]


def test_levels_with_communication(diamond: DataflowGraph) -> None:
    # op 1: 3 + 5 + 1 = 9; op 2: 4 + 1 + 6 = 11; op 0: 2 + 1 + 11 = 14
    assert b_levels(diamond, SECONDS, TRANSFER).tolist() == [14, 9, 11, 1, 6]
    # op 3: through 1: 0+2+1 +3+5 = 11; through 2: 3+4+1 = 8
    assert t_levels(diamond, SECONDS, TRANSFER).tolist() == [0, 3, 3, 11, 8]


def test_path_successors_break_ties_by_id() -> None:
    graph = DataflowGraph.from_edges("fork", 3, [(0, 2), (0, 1)])
    assert path_successors(graph, b_levels(graph, np.ones(3))).tolist() == [1, -1, -1]


def test_rows_are_sorted_and_consistent(diamond: DataflowGraph) -> None:
    assert diamond.successors(0).tolist() == [1, 2]
    assert diamond.predecessors(3).tolist() == [1, 2]
    assert diamond.edges.tolist() == sorted(map(list, DIAMOND))
    assert diamond.in_degrees.tolist() == [0, 1, 1, 2, 1]
    assert diamond.out_degrees.tolist() == [2, 1, 2, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        diamond.succ_ops[0] = 3


@given(st.integers(2, 30), st.integers(0, 2**32 - 1))
def test_levels_agree_with_networkx(num_ops: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    upper = np.argwhere(np.triu(rng.random((num_ops, num_ops)) < 0.2, 1))
    relabel = rng.permutation(num_ops)
    graph = DataflowGraph.from_edges("random", num_ops, relabel[upper])
    seconds, transfer = rng.random(num_ops), rng.random(num_ops)
    reference = nx.DiGraph(list(map(tuple, relabel[upper].tolist())))
    reference.add_nodes_from(range(num_ops))
    for u, v in reference.edges:
        reference.edges[u, v]["weight"] = seconds[u] + transfer[u]
    total = t_levels(graph, seconds, transfer) + b_levels(graph, seconds, transfer)
    longest = nx.dag_longest_path(reference)
    length = seconds[longest[-1]] + sum(seconds[u] + transfer[u] for u in longest[:-1])
    assert b_levels(graph, seconds, transfer).max() >= length - 1e-12
    assert total.max() == pytest.approx(b_levels(graph, seconds, transfer).max())
    rank = np.empty(num_ops, int)
    rank[graph.topological_order] = np.arange(num_ops)
    assert all(rank[u] < rank[v] for u, v in graph.edges)


@pytest.mark.parametrize(
    ("num_ops", "edges", "columns", "message"),
    [
        (0, [], {}, "num_ops: 0 is below 1"),
        (2, [(0, 2)], {}, "edge 0 (0 -> 2): dangling"),
        (2, [(-1, 1)], {}, "dangling"),
        (2, [(1, 1)], {}, "op 1 consumes its own output"),
        (3, [(0, 1), (0, 1)], {}, "edge 0 -> 1 appears twice"),
        (3, [(0, 1), (1, 2), (2, 0)], {}, "cycle through ops"),
        (2, [], {"flops": [1.0]}, "flops: shape (1,)"),
        (2, [], {"flops": [1.0, np.nan]}, "op 1, flops: nan"),
        (2, [], {"output_bytes": [-1.0, 0]}, "op 0, output_bytes: -1.0"),
        (2, [], {"output_bytes": ["a", 0]}, "output_bytes: cannot be read"),
        (2, [], {"kinds": ["a"]}, "kinds: 1 values for 2 ops"),
        (2, [], {"roles": ["shard", "x"]}, "op 1, roles: 'x'"),
        (2, [], {"meta_op": [0]}, "meta_op: shape (1,)"),
    ],
)
def test_refusals(num_ops: int, edges: list, columns: dict, message: str) -> None:
    with pytest.raises(InvalidGraphError) as caught:
        DataflowGraph.from_edges("g", num_ops, edges, **columns)
    assert message in str(caught.value)
    assert "'g'" in str(caught.value)


def test_the_cycle_is_named_in_order() -> None:
    edges = [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4)]
    with pytest.raises(InvalidGraphError) as caught:
        DataflowGraph.from_edges("g", 5, edges)
    shown = str(caught.value).split("ops ")[1].split(" -> ")
    assert shown[0] == shown[-1]
    assert sorted(set(shown)) == ["1", "2", "3"]
    walked = list(zip(map(int, shown), map(int, shown[1:])))
    assert all(step in edges for step in walked)


def test_unknown_quantities_are_refused(diamond: DataflowGraph) -> None:
    with pytest.raises(UnknownQuantityError, match="'diamond' does not say flops"):
        diamond.require("flops")
