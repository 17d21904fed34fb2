"""The policy: equivariance, independence of sizes, files and options."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import CheckpointError, ConfigurationError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.policies import PAPER_POLICY, DualPolicy, PolicyConfig
from doppler.problem import PlacementProblem
from doppler.training.rollout import EpisodeRunner, Episodes
from doppler.workloads.random_dags import layered_dag

CONFIGS = [
    PolicyConfig(hidden_width=16, message_rounds=2, head_width=8),
    PolicyConfig(hidden_width=16, message_rounds=2, head_width=8, shared_encoder=False),
    PolicyConfig(16, 2, 2, 8, extended_features=False, sel_state_features=False),
]


def trained_like(config: PolicyConfig) -> DualPolicy:
    """A policy whose weights are large enough that its choices depend on what it sees."""
    policy = DualPolicy(config, seed=3)
    with torch.no_grad():
        for head in (policy.sel.last, policy.plc.last):
            head.weight.mul_(30.0)
    return policy


def likelihoods(policy: DualPolicy, problem: PlacementProblem, episodes: Episodes) -> np.ndarray:
    runner = EpisodeRunner(policy, problem, "contention_free", len(episodes.ops))
    batch = runner.run(np.random.default_rng(0), forced=episodes)
    return np.stack([batch.sel_log_likelihood, batch.plc_log_likelihood])


def uneven_problem(num_ops: int = 24, num_devices: int = 3) -> PlacementProblem:
    """Seconds differ between ops and devices, so that there are no ties."""
    base = layered_dag(num_ops, num_devices, seed=1)
    rng = np.random.default_rng(2)
    costs = base.cost_model
    return PlacementProblem(
        base.graph,
        base.topology,
        CostModel(
            costs.op_seconds * rng.uniform(0.5, 2.0, costs.op_seconds.shape),
            costs.transfer_volume,
            costs.link_latency,
            costs.link_seconds_per_unit,
            "test",
        ),
    )


@pytest.mark.parametrize("config", CONFIGS)
def test_renumbering_ops_renumbers_the_outputs(config: PolicyConfig) -> None:
    problem = uneven_problem()
    num_ops = problem.num_ops
    new_id = np.random.default_rng(5).permutation(num_ops)  # new id of each old op
    old_id = np.argsort(new_id)
    costs = problem.cost_model
    renumbered = PlacementProblem(
        DataflowGraph.from_edges("renumbered", num_ops, new_id[problem.graph.edges]),
        problem.topology,
        CostModel(
            costs.op_seconds[old_id],
            costs.transfer_volume[old_id],
            costs.link_latency,
            costs.link_seconds_per_unit,
            "test",
        ),
    )
    policy = trained_like(config)
    with torch.no_grad():
        before = policy.encode(policy.features(problem))
        after = policy.encode(policy.features(renumbered))
    for old, new in zip(before, after):
        assert torch.allclose(old[:-1], new[:-1][new_id], atol=1e-4)
    assert before.sel_scores[:-1].std() > 0.02
    runner = EpisodeRunner(policy, problem, "contention_free", 4)
    batch = runner.run(np.random.default_rng(1))
    found = likelihoods(policy, problem, batch)
    again = likelihoods(policy, renumbered, Episodes(new_id[batch.ops], batch.devices))
    assert again == pytest.approx(found, abs=1e-4)


@pytest.mark.parametrize("config", CONFIGS)
def test_renumbering_devices_changes_no_likelihood(config: PolicyConfig) -> None:
    problem = uneven_problem()  # all links are equal, so only the seconds move with the devices
    swap = np.array([2, 0, 1])  # new number of each device
    costs = problem.cost_model
    renumbered = PlacementProblem(
        problem.graph,
        problem.topology,
        CostModel(
            costs.op_seconds[:, np.argsort(swap)],
            costs.transfer_volume,
            costs.link_latency,
            costs.link_seconds_per_unit,
            "test",
        ),
    )
    policy = trained_like(config)
    runner = EpisodeRunner(policy, problem, "contention_free", 4)
    batch = runner.run(np.random.default_rng(1))
    found = likelihoods(policy, problem, batch)
    again = likelihoods(policy, renumbered, Episodes(batch.ops, swap[batch.devices]))
    assert again == pytest.approx(found, abs=1e-4)
    assert np.abs(found[1] + np.log(3)).max() > 0.05  # not merely uniform over the devices


def test_one_policy_serves_any_graph_and_any_number_of_devices() -> None:
    policy = trained_like(CONFIGS[0])
    for num_ops, num_devices in ((1, 1), (6, 2), (40, 9)):
        problem = layered_dag(num_ops, num_devices, seed=num_ops)
        batch = EpisodeRunner(policy, problem, "serial_links", 2).run(np.random.default_rng(0))
        assert sorted(batch.ops[1].tolist()) == list(range(num_ops))
        assert batch.devices.max() < num_devices


def test_initial_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    first = DualPolicy(CONFIGS[0], seed=7)
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(2)
    second = DualPolicy(CONFIGS[0], seed=7)
    other = DualPolicy(CONFIGS[0], seed=8)
    for one, two in zip(first.parameters(), second.parameters()):
        assert torch.equal(one, two)
    assert not torch.equal(first.embed_raw.weight, other.embed_raw.weight)


def test_a_new_policy_is_nearly_uniform() -> None:
    problem = layered_dag(30, 4, seed=0)
    runner = EpisodeRunner(DualPolicy(), problem, "contention_free", 8)
    batch = runner.run(np.random.default_rng(0))
    assert batch.plc_log_likelihood == pytest.approx(-np.log(4), abs=0.3)


def test_files_hold_shape_and_weights(tmp_path: Path) -> None:
    policy = DualPolicy(CONFIGS[1], seed=4)
    policy.save(tmp_path / "policy.pt")
    loaded = DualPolicy.load(tmp_path / "policy.pt")
    assert loaded.config == policy.config
    for one, two in zip(policy.parameters(), loaded.parameters()):
        assert torch.equal(one, two)


def test_bad_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    with pytest.raises(CheckpointError, match=r"policy\.pt"):
        DualPolicy.load(path)
    DualPolicy(CONFIGS[0]).save(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(CheckpointError, match="cannot be read"):
        DualPolicy.load(path)
    torch.save({"format": "something"}, path)
    with pytest.raises(CheckpointError, match="format"):
        DualPolicy.load(path)


def test_bad_options_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="hidden_width"):
        PolicyConfig(hidden_width=0)
    with pytest.raises(ConfigurationError, match="hiden_width"):
        PolicyConfig.from_dict({"hiden_width": 8})


def test_the_papers_network_has_its_sizes() -> None:
    policy = DualPolicy(PAPER_POLICY)
    assert policy.sel.first.in_features == 4 * 128
    assert policy.sel.first.out_features == 64
    assert policy.sel.last.out_features == 1
    assert policy.encoders[0].rounds == 6
    assert policy.num_device_features == 5


def test_messages_depend_on_their_edges() -> None:
    graph = DataflowGraph.from_edges("pair", 3, [(0, 1), (2, 1)])
    topology = make_topology("ideal", 2)

    def encoded(volume: float) -> torch.Tensor:
        costs = CostModel(
            np.ones((3, 2)), np.array([1.0, 1.0, volume]), np.zeros(2), np.ones(2), "test"
        )
        policy = DualPolicy(CONFIGS[0])
        features = policy.features(PlacementProblem(graph, topology, costs))
        features.op_features.zero_()  # so that only the edges can tell
        return policy.encoders[0](features)

    assert not torch.allclose(encoded(1.0), encoded(4.0), atol=1e-4)
