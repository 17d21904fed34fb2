"""The comparators' policies: equivariance, independence of sizes, files and options."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from doppler.errors import CheckpointError, ConfigurationError
from doppler.graph import DataflowGraph
from doppler.hardware import CostModel, make_topology
from doppler.policies import (
    DualPolicy,
    GdpConfig,
    GdpPolicy,
    JointConfig,
    JointPolicy,
    PlacetoConfig,
    PlacetoPolicy,
    PlcOnlyConfig,
    PlcOnlyPolicy,
    Policy,
    PolicyConfig,
    SelOnlyConfig,
    SelOnlyPolicy,
)
from doppler.policies.gdp import sinusoids
from doppler.policies.placeto import producers_and_consumers
from doppler.policies.rules import critical_path_order
from doppler.policies.walking import WalkFeatures, before_and_after
from doppler.problem import PlacementProblem
from doppler.training import Episodes, make_runner
from doppler.workloads.random_dags import layered_dag

SIZES = {"hidden_width": 16, "message_rounds": 2, "head_width": 8}
POLICIES: dict[str, Policy] = {
    "sel_only": SelOnlyPolicy(SelOnlyConfig(**SIZES), seed=3),
    "plc_only": PlcOnlyPolicy(PlcOnlyConfig(**SIZES), seed=3),
    "placeto": PlacetoPolicy(PlacetoConfig(**SIZES), seed=3),
    "placeto_plain": PlacetoPolicy(PlacetoConfig(**SIZES, extended_features=False), seed=3),
    "gdp": GdpPolicy(GdpConfig(16, 2, 2, 2, segment_ops=10), seed=3),
    "joint": JointPolicy(JointConfig(**SIZES), seed=3),
    "joint_plain": JointPolicy(
        JointConfig(**SIZES, extended_features=False, sel_state_features=False), seed=3
    ),
}


def trained_like(name: str) -> Policy:
    """A policy whose weights are large enough that its choices depend on what it sees."""
    policy = type(POLICIES[name])(POLICIES[name].config, seed=3)
    for part, sharper in (("sel", "last"), ("plc", "last"), ("of_op", "weight")):
        module = getattr(getattr(policy, part, None), sharper, None)
        with torch.no_grad():
            if isinstance(module, torch.nn.Linear):
                module.weight.mul_(30.0)
            elif module is not None:
                module.mul_(30.0)
    return policy


def likelihoods(policy: Policy, problem: PlacementProblem, episodes: Episodes) -> np.ndarray:
    runner = make_runner(policy, problem, "contention_free", len(episodes.ops))
    batch = runner.run(np.random.default_rng(0), forced=episodes)
    return np.stack([batch.sel_log_likelihood, batch.plc_log_likelihood])


def uneven_problem() -> PlacementProblem:
    """Seconds differ between ops and devices, so that there are no ties."""
    base = layered_dag(24, 3, seed=1)
    seconds = base.cost_model.op_seconds
    scale = np.random.default_rng(2).uniform(0.5, 2.0, seconds.shape)
    return replace(base, cost_model=replace(base.cost_model, op_seconds=seconds * scale))


@pytest.mark.parametrize("name", POLICIES)
def test_renumbering_ops_renumbers_the_outputs(name: str) -> None:
    problem = uneven_problem()
    new_id = np.random.default_rng(5).permutation(problem.num_ops)  # new id of each old op
    old_id = np.argsort(new_id)
    costs = problem.cost_model
    renumbered = PlacementProblem(
        DataflowGraph.from_edges("renumbered", problem.num_ops, new_id[problem.graph.edges]),
        problem.topology,
        replace(
            costs,
            op_seconds=costs.op_seconds[old_id],
            transfer_volume=costs.transfer_volume[old_id],
        ),
    )
    policy = trained_like(name)
    with torch.no_grad():
        before = policy.encode(policy.features(problem))
        after = policy.encode(policy.features(renumbered))
    for old, new in zip(before, after):
        assert torch.allclose(old[:-1], new[:-1][new_id], atol=1e-4)
    assert max(float(table[:-1].std(0).max()) for table in before if table.numel() > 25) > 0.02
    batch = make_runner(policy, problem, "contention_free", 4).run(np.random.default_rng(1))
    found = likelihoods(policy, problem, batch)
    again = likelihoods(policy, renumbered, Episodes(new_id[batch.ops], batch.devices))
    assert again == pytest.approx(found, abs=1e-4)
    assert np.abs(found).max() > 0.05


def renumbered_devices(problem: PlacementProblem, swap: np.ndarray) -> PlacementProblem:
    """All links are equal, so only the seconds move with the devices."""
    seconds = problem.cost_model.op_seconds[:, np.argsort(swap)]
    return replace(problem, cost_model=replace(problem.cost_model, op_seconds=seconds))


@pytest.mark.parametrize("name", [name for name in POLICIES if name != "gdp"])
def test_renumbering_devices_changes_no_likelihood(name: str) -> None:
    problem, swap = uneven_problem(), np.array([2, 0, 1])
    renumbered = renumbered_devices(problem, swap)
    policy = trained_like(name)
    batch = make_runner(policy, problem, "contention_free", 4).run(np.random.default_rng(1))
    found = likelihoods(policy, problem, batch)
    again = likelihoods(policy, renumbered, Episodes(batch.ops, swap[batch.devices]))
    assert again == pytest.approx(found, abs=1e-4)
    learned = found[0 if name in ("sel_only", "joint", "joint_plain") else 1]
    assert learned.std() > 0.02  # not merely uniform


def test_gdp_knows_devices_by_number_but_not_by_how_many_there_are() -> None:
    policy = trained_like("gdp")
    problem = uneven_problem()
    with torch.no_grad():
        logits = policy.encode(policy.features(problem)).plc_ops
        swapped = renumbered_devices(problem, np.array([2, 0, 1]))
        assert torch.allclose(policy.encode(policy.features(swapped)).plc_ops, logits, atol=1e-4)
        more = policy.encode(policy.features(layered_dag(24, 5, seed=1))).plc_ops
        less = policy.encode(policy.features(layered_dag(24, 2, seed=1))).plc_ops
    assert logits.shape == (25, 3)
    assert (logits[:, 0] - logits[:, 1]).abs().max() > 0.05  # so renaming devices matters
    assert torch.allclose(more[:, :2], less, atol=1e-4)  # a device's logit is its own


def gdp(**sizes: int) -> GdpPolicy:
    return GdpPolicy(GdpConfig(hidden_width=16, message_rounds=1, attention_heads=2, **sizes))


def random_rows(count: int) -> torch.Tensor:
    return torch.randn(count, 16, generator=torch.Generator().manual_seed(0))


def test_gdp_attention_reaches_one_segment_back_per_layer() -> None:
    """Segments of 10 of 34 ops, two layers: each segment is heard in two others, none before it."""
    policy, rows = gdp(attention_layers=2, segment_ops=10), random_rows(34)

    def changed(at: int) -> list[bool]:
        other = rows.clone()
        other[at, 0] += 1.0
        with torch.no_grad():
            difference = (policy._attend(other) - policy._attend(rows)).abs().amax(1)
        return [bool(segment.max() > 1e-6) for segment in difference.split(10)]

    assert changed(3) == [True, True, True, False]
    assert changed(13) == [False, True, True, True]
    assert changed(33) == [False, False, False, True]
    rows.requires_grad_()
    policy._attend(rows)[20:30, 0].sum().backward()
    assert rows.grad is not None  # only through the segment itself, not through its memory
    assert [bool(part.abs().max() > 0.0) for part in rows.grad.split(10)] == [
        False,
        False,
        True,
        False,
    ]


def test_gdp_does_not_hear_padding() -> None:
    """Four ops in a segment of six, whatever the last two rows hold."""
    policy, rows = gdp(attention_layers=1, segment_ops=6), random_rows(4)
    hidden = torch.cat([rows, torch.full((2, 16), 7.0)])[None]
    hidden[0, 4, 0] = -9.0
    present = torch.tensor([False] * 6 + [True] * 4 + [False] * 2)[None, None, None]
    with torch.no_grad():
        alone = policy._attend(rows)
        padded = policy.attention[0](hidden, present)[0, :4]
        heard = policy.attention[0](hidden, torch.ones_like(present))[0, :4]
        second = policy._attend(torch.cat([random_rows(6), rows]))[6:]
    assert alone.shape == (4, 16)
    assert torch.allclose(padded, alone, atol=1e-5)
    assert not torch.allclose(heard, alone, atol=1e-3)
    assert not torch.allclose(second, alone, atol=1e-3)  # the segment before is heard


def test_sinusoids_tell_numbers_apart() -> None:
    rows = sinusoids(300, 16)
    distance = torch.cdist(rows, rows) + torch.eye(300) * 9
    assert distance.min() > 0.05
    assert torch.equal(sinusoids(5, 16), rows[:5])
    assert sinusoids(3, 7).shape == (3, 7)
    assert rows[2, 0] == pytest.approx(np.sin(2.0)) and rows[2, 8] == pytest.approx(np.cos(2.0))


def two_chains() -> PlacementProblem:
    r"""0 -> 2 -> 4 and 1 -> 3 -> 4; op seconds 1, 5, 1, 1, 1; a transfer takes 1 s.

    b-levels: 4: 1; 2 and 3: 3; 0: 5; 1: 9. The walk: 1, 0, then 2 before 3 by id, 4.
    """
    graph = DataflowGraph.from_edges("chains", 5, [(0, 2), (2, 4), (1, 3), (3, 4)])
    seconds = np.repeat(np.array([[1.0], [5.0], [1.0], [1.0], [1.0]]), 2, axis=1)
    costs = CostModel(seconds, np.ones(5), np.zeros(2), np.ones(2), "test")
    return PlacementProblem(graph, make_topology("ideal", 2), costs)


def test_the_walk_and_what_is_pooled_along_it_by_hand() -> None:
    problem = two_chains()
    assert critical_path_order(problem).tolist() == [1, 0, 2, 3, 4]
    features = WalkFeatures.from_problem(problem)
    assert features.position.tolist() == [1, 0, 2, 3, 4]
    rows = torch.tensor([[10.0], [20.0], [30.0], [40.0], [50.0]])
    visited, others = before_and_after(rows, features)
    assert visited.flatten().tolist() == pytest.approx([20.0, 0.0, 15.0, 20.0, 25.0])
    assert others.flatten().tolist() == pytest.approx([32.5, 30.0, 40.0, 45.0, 50.0])
    above, below = producers_and_consumers(rows, features)
    assert above.flatten().tolist() == pytest.approx([0.0, 0.0, 10.0, 20.0, 35.0])
    assert below.flatten().tolist() == pytest.approx([30.0, 40.0, 50.0, 50.0, 0.0])


def test_placeto_sees_no_times() -> None:
    policy = trained_like("placeto")
    rows, pooled = torch.zeros(1, 8), torch.zeros(1, 2, 8)
    features = torch.rand(1, 2, policy.num_device_features, generator=torch.manual_seed(0))
    found = policy.plc(rows, pooled, features)
    for column in (2, 3, 4, 6, 7):  # starts and finishes
        other = features.clone()
        other[..., column] += 5.0
        assert torch.equal(policy.plc(rows, pooled, other), found)
    for column in (0, 1, 5, 8, 9, 10, 11, 12, 13, 14, 15):
        other = features.clone()
        other[..., column] += 5.0
        assert not torch.equal(policy.plc(rows, pooled, other), found), column


@pytest.mark.parametrize("name", POLICIES)
def test_files_hold_kind_shape_and_weights(name: str, tmp_path: Path) -> None:
    policy, path = trained_like(name), tmp_path / "policy.pt"
    policy.save(path)
    for load in (Policy.load, type(policy).load):
        loaded = load(path)
        assert type(loaded) is type(policy) and loaded.config == policy.config
        for one, two in zip(policy.parameters(), loaded.parameters(), strict=True):
            assert torch.equal(one, two)
    with pytest.raises(CheckpointError, match=f"kind '{policy.kind}', not 'doppler'"):
        DualPolicy.load(path)


def test_files_of_unknown_kinds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.pt"
    for kind in ("gdq", 3, None):
        document = {"kind": kind, **asdict(PolicyConfig())}
        torch.save({"format": "doppler-policy", "version": 1, "config": document}, path)
        with pytest.raises(CheckpointError, match=f"policy kind: {kind!r} is not one of doppler,"):
            Policy.load(path)
    document = {**asdict(GdpConfig()), "head_width": 3}
    torch.save({"format": "doppler-policy", "version": 1, "config": document}, path)
    with pytest.raises(CheckpointError, match="unknown option 'head_width'"):
        Policy.load(path)


def test_impossible_shapes_are_refused() -> None:
    for config in (SelOnlyConfig, PlcOnlyConfig, PlacetoConfig, JointConfig):
        with pytest.raises(ConfigurationError, match="shared_encoder: one head"):
            config(shared_encoder=False)
    with pytest.raises(ConfigurationError, match="attention_heads: 3 do not divide"):
        GdpConfig(hidden_width=64, attention_heads=3)
    with pytest.raises(ConfigurationError, match="segment_ops: 0 is not"):
        GdpConfig(segment_ops=0)
    with pytest.raises(ConfigurationError, match="'gdp', config: a PolicyConfig is the shape"):
        GdpPolicy(PolicyConfig())  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="'doppler', config: a JointConfig"):
        DualPolicy(JointConfig())
    with pytest.raises(ConfigurationError, match="unknown option 'kind'"):
        JointConfig.from_dict({"kind": "gdp"})


@pytest.mark.parametrize("name", POLICIES)
def test_one_policy_serves_any_graph_and_any_number_of_devices(name: str) -> None:
    policy = trained_like(name)
    for num_ops, num_devices in ((1, 1), (6, 2), (40, 9)):
        problem = layered_dag(num_ops, num_devices, seed=num_ops)
        batch = make_runner(policy, problem, batch_size=2).run(np.random.default_rng(0))
        assert sorted(batch.ops[1].tolist()) == list(range(num_ops))
        assert batch.devices.min() >= 0 and batch.devices.max() < num_devices


@pytest.mark.parametrize("name", POLICIES)
def test_a_new_policy_is_nearly_uniform_and_its_seed_decides(name: str) -> None:
    problem = layered_dag(30, 4, seed=0)
    policy_type, config = type(POLICIES[name]), POLICIES[name].config
    before = torch.random.get_rng_state()
    first, second, other = (policy_type(config, seed=seed) for seed in (7, 7, 8))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(map(torch.equal, first.parameters(), second.parameters()))
    assert not all(map(torch.equal, first.parameters(), other.parameters()))
    batch = make_runner(first, problem, batch_size=8).run(np.random.default_rng(0))
    uniform = make_runner(first, problem, batch_size=8).run(
        np.random.default_rng(0), forced=batch, exploration=1.0
    )
    assert batch.log_likelihood == pytest.approx(uniform.log_likelihood, abs=0.3 * 30)
    assert batch.sel_log_likelihood == pytest.approx(uniform.sel_log_likelihood, abs=0.4)
    assert batch.plc_log_likelihood == pytest.approx(uniform.plc_log_likelihood, abs=0.4)
