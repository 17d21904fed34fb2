"""The registered environments: specification tests, golden episodes, batches, learners."""

from __future__ import annotations

import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env, data_equivalence
from gymnasium.vector import AutoresetMode

import envs
from doppler import CostModel, DataflowGraph, Device, PlacementProblem, Topology, save_problem
from doppler.errors import ConfigurationError, FileFormatError
from doppler.hardware import make_topology
from doppler.problem import InputTensor
from doppler.schedulers import CriticalPath
from doppler.simulator import Simulator
from envs.observation import CLIP

SMALL = {"workload": "ffnn", "num_shards": 4, "num_devices": 2}


def make(env_id: str, **options: Any) -> gymnasium.Env:
    return gymnasium.make(env_id, **{**SMALL, **options})


def tiny_problem(memory_bytes: float | None = None) -> PlacementProblem:
    """0 (2 s, 3 s to move) and 1 (1 s, 2 s to move) feed 2 (4 s)."""
    graph = DataflowGraph.from_edges("tiny", 3, [(0, 2), (1, 2)], output_bytes=[3.0, 2.0, 1.0])
    topology = Topology(
        "two",
        tuple(Device(name, memory_bytes=memory_bytes) for name in "ab"),
        make_topology("ideal", 2).links,
    )
    costs = CostModel(
        np.repeat([[2.0], [1.0], [4.0]], 2, axis=1),
        [3.0, 2.0, 1.0],
        np.zeros(2),
        np.ones(2),
        "test",
    )
    return PlacementProblem(graph, topology, costs)


def legal_action(env: gymnasium.Env, rng: np.random.Generator) -> Any:
    base = env.unwrapped
    masks = base.action_masks()
    if isinstance(base.action_space, gymnasium.spaces.Discrete):
        return rng.choice(np.flatnonzero(masks))
    size = base.task.problem.num_devices
    return np.array([rng.choice(np.flatnonzero(masks[:-size])), rng.integers(size)])


def play(env: gymnasium.Env, rng: np.random.Generator) -> tuple[list, dict]:
    """One legal episode: (observation, reward, terminated, truncated) by step, last info."""
    steps = []
    while True:
        *step, info = env.step(legal_action(env, rng))
        steps.append(step)
        if step[2] or step[3]:
            return steps, info


@pytest.mark.parametrize("env_id", envs.ENV_IDS)
def test_checkers_pass_without_a_warning(env_id: str) -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    env = make(env_id)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        check_for_sb3(env.unwrapped)
    env.close()


@pytest.mark.parametrize("env_id", envs.ENV_IDS)
def test_two_environments_are_equal(env_id: str) -> None:
    one, two = make(env_id), make(env_id)
    deterministic = not one.spec.nondeterministic
    assert deterministic == ("Measured" not in env_id)
    assert data_equivalence(one.reset(seed=5), two.reset(seed=5))
    assert one.unwrapped.np_random.integers(1 << 30) == two.unwrapped.np_random.integers(1 << 30)
    for _ in range(2):
        (steps, info), (others, other) = (play(e, np.random.default_rng(1)) for e in (one, two))
        assert len(steps) == one.unwrapped.task.problem.num_ops
        for step, same in zip(steps, others):
            assert one.observation_space.contains(step[0])
            assert data_equivalence(step[0], same[0]) and step[2:] == same[2:]
            if deterministic:
                assert step[1] == same[1]
        for key in ("simulated_makespan", "placement", "order"):
            assert data_equivalence(info[key], other[key])
        one.reset(), two.reset()
    one.close(), two.close()


@pytest.mark.parametrize("env_id", envs.ENV_IDS)
def test_a_pickled_environment_goes_on_as_it_was(env_id: str) -> None:
    env = make(env_id)
    env.reset(seed=0)
    rng = np.random.default_rng(2)
    for _ in range(5):
        env.step(legal_action(env, rng))
    copy = pickle.loads(pickle.dumps(env))
    (steps, _), (others, _) = (play(e, np.random.default_rng(3)) for e in (env, copy))
    assert data_equivalence([s[0] for s in steps], [s[0] for s in others])
    env.close(), copy.close()


@pytest.mark.parametrize("env_id", envs.ENV_IDS)
def test_docstrings_have_the_fixed_sections(env_id: str) -> None:
    text = type(make(env_id).unwrapped).__doc__ or ""
    titles = [line.strip()[3:] for line in text.splitlines() if line.strip().startswith("## ")]
    assert titles == [
        "Description", "Action Space", "Observation Space", "Rewards", "Starting State",
        "Episode End", "Arguments", "Version History",
    ]  # fmt: skip


def test_golden_episode() -> None:
    env = gymnasium.make("doppler/Placement-v0", problem=tiny_problem())
    observation, info = env.reset(seed=0)
    assert info == {}
    assert env.unwrapped.task.time_unit == 7.0  # 2 + 1 + 4 s on one device
    assert observation["candidates"].tolist() == [1, 1, 0]
    assert observation["devices"].tolist() == [-1, -1, -1]
    assert observation["edge_source"].tolist() == [0, 1]
    assert observation["edge_target"].tolist() == [2, 2]
    # b-levels with communication: 2 + 3 + 4, 1 + 2 + 4, 4
    assert observation["b_level"] == pytest.approx(np.array([9, 7, 4]) / 7)
    assert observation["t_level"] == pytest.approx(np.array([0, 0, 5]) / 7)
    assert observation["input_transfers"] == pytest.approx(np.array([0, 0, 5]) / 7)
    assert observation["output_transfers"] == pytest.approx(np.array([3, 2, 0]) / 7)
    assert observation["op_seconds"] == pytest.approx(np.array([2, 2, 1, 1, 4, 4]) / 7)
    assert env.unwrapped.action_masks().tolist() == [True, True, False, True, True]
    observation, reward, terminated, truncated, info = env.step(np.array([0, 0]))
    assert (reward, terminated, truncated, info) == (0.0, False, False, {})
    assert observation["device_free"] == pytest.approx(np.array([2, 0]) / 7)
    assert observation["earliest_start"] == pytest.approx(np.array([0, 0, 2, 0, 0, 0]) / 7)
    observation = env.step(np.array([1, 1]))[0]
    # op 2 on a waits for op 1's tensor: 1 + 2 = 3; on b for op 0's: 2 + 3 = 5
    assert observation["earliest_start"] == pytest.approx(np.array([0, 0, 0, 0, 3, 5]) / 7)
    assert observation["progress"].tolist() == pytest.approx([2 / 3])
    observation, reward, terminated, truncated, info = env.step(np.array([2, 0]))
    assert terminated and not truncated
    assert info["simulated_makespan"] == 7.0 and reward == -1.0
    assert info["placement"].tolist() == [0, 1, 0] and info["order"].tolist() == [0, 1, 2]
    assert observation["start"] == pytest.approx(np.array([0, 0, 3]) / 7)
    assert observation["finish"] == pytest.approx(np.array([2, 1, 7]) / 7)
    assert observation["device_compute"] == pytest.approx(np.array([6, 1]) / 7)
    assert not env.unwrapped.action_masks()[:3].any()
    with pytest.raises(ResetNeeded):
        env.step(np.array([0, 0]))
    env.reset()
    assert env.step(np.array([1, 0]))[2] is False


def test_observations_are_clipped() -> None:
    problem = tiny_problem()
    costs = CostModel(
        problem.cost_model.op_seconds, [1e4, 1e4, 1.0], np.zeros(2), np.ones(2), "slow links"
    )
    env = envs.PlacementEnv(problem=PlacementProblem(problem.graph, problem.topology, costs))
    env.reset(seed=0)
    for action in ([0, 0], [1, 1]):
        observation = env.step(np.array(action))[0]
        assert env.observation_space.contains(observation)
    assert observation["earliest_start"][4:].tolist() == [CLIP, CLIP]


@pytest.mark.parametrize(
    ("actions", "reason"),
    [
        ([[2, 0]], "op 2 is not a candidate, its predecessor op 0 is not placed"),
        ([[1, 0], [1, 1]], "op 1 is already placed, on device 0"),
        ([[0, 2]], "op 0: device 2 does not exist"),
        ([[3, 0]], "op 3 does not exist"),
    ],
)
def test_illegal_actions_end_the_episode(actions: list, reason: str) -> None:
    env = envs.PlacementEnv(problem=tiny_problem())
    env.reset(seed=0)
    for action in actions:
        *_, reward, terminated, truncated, info = env.step(np.array(action))
    assert terminated and not truncated and reason in info["illegal_action"]
    # all ops one after the other, then every transfer: (7 + 5) / 7
    assert reward == pytest.approx(-12 / 7)
    with pytest.raises(ResetNeeded):
        env.step(np.array([0, 0]))
    vector = envs.PlacementVectorEnv(1, problem=tiny_problem())
    vector.reset(seed=0)
    for action in actions:
        _, rewards, terminations, _, infos = vector.step(np.array([action]))
    assert terminations.tolist() == [True] and rewards[0] == reward
    assert infos["final_info"]["illegal_action"][0] == info["illegal_action"]


def test_no_legal_placement_is_worse_than_an_illegal_action() -> None:
    env = envs.PlacementEnv(**SMALL, network="one_port")
    for seed in range(5):
        env.reset(seed=0)
        steps, _ = play(env, np.random.default_rng(seed))
        assert steps[-1][1] > env.task.illegal_reward
    assert envs.PlacementEnv(**SMALL, illegal_reward=-3.5).task.illegal_reward == -3.5


def test_flat_actions_count_devices_fastest() -> None:
    env = envs.PlacementFlatEnv(problem=tiny_problem())
    env.reset(seed=0)
    assert env.action_space.n == 6
    assert env.action_masks().tolist() == [True, True, True, True, False, False]
    env.step(1)  # op 0 on b
    observation = env.step(2)[0]  # op 1 on a
    assert observation["devices"].tolist() == [1, 0, -1]
    assert env.action_masks().tolist() == [False] * 4 + [True] * 2
    _, reward, terminated, _, info = env.step(5)
    assert terminated and info["placement"].tolist() == [1, 0, 1] and reward == -1.0


def constrained_problem() -> PlacementProblem:
    """`tiny_problem` with op 1 pinned to b, ops 0 and 2 together, and an input for op 1 on a."""
    return replace(
        tiny_problem(),
        pinned=[-1, 1, -1],
        colocation=[0, -1, 0],
        inputs=(InputTensor("x", 1.0, (1,), 0),),
    )


def test_constraints_show_in_the_flat_mask_and_are_refused_elsewhere(tmp_path: Path) -> None:
    save_problem(constrained_problem(), tmp_path / "p.json")
    for problem in (constrained_problem(), tmp_path / "p.json"):
        for cls in (envs.PlacementEnv, envs.PlacementVectorEnv):
            with pytest.raises(ConfigurationError, match="use doppler/PlacementFlat-v0"):
                cls(problem=problem)
        env = envs.PlacementFlatEnv(problem=problem)
        env.reset(seed=0)
        # ops 0, 1, 2 and the input (op 3), each on a and on b; op 1 waits for the input
        assert env.action_masks().tolist() == [
            True, True, False, False, False, False, True, False
        ]  # fmt: skip
        env.step(6)  # the input on a
        assert env.action_masks().tolist() == [
            True, True, False, True, False, False, False, False
        ]  # fmt: skip
        env.step(0)  # op 0 on a, so op 2 must follow
        env.step(3)
        assert np.flatnonzero(env.action_masks()).tolist() == [4]
        _, reward, terminated, _, info = env.step(4)
        # x reaches b at 1: op 1 [1, 2]; its tensor is on a at 4: op 2 [4, 8]
        assert terminated and info["simulated_makespan"] == 8.0 and reward == pytest.approx(-8 / 7)


def test_a_forbidden_device_ends_the_episode() -> None:
    env = envs.PlacementFlatEnv(problem=constrained_problem())
    env.reset(seed=0)
    *_, reward, terminated, _, info = env.step(7)
    assert terminated and reward == env.task.illegal_reward
    assert "op 3 may not go on device 1, it is pinned to device 0" in info["illegal_action"]


def test_the_checkers_pass_on_constrained_problems() -> None:
    from stable_baselines3.common.env_checker import check_env as check_for_sb3

    env = envs.PlacementFlatEnv(problem=constrained_problem())
    check_env(env, skip_render_check=True)
    check_for_sb3(env)


def test_over_capacity_is_penalised_and_explained() -> None:
    for options in ({}, {"num_envs": 2}):
        cls = envs.PlacementVectorEnv if options else envs.PlacementEnv
        env = cls(problem=tiny_problem(memory_bytes=5.5), **options)
        env.reset(seed=0)
        for op in range(3):  # all on one device: 3 + 2 + 1 bytes
            action = np.array([op, 0])
            result = env.step(np.tile(action, (2, 1)) if options else action)
        info = result[4]["final_info"] if options else result[4]
        reason = info["over_capacity"][0] if options else info["over_capacity"]
        assert np.all(np.isinf(info["simulated_makespan"])) and "device 0" in reason
        assert np.all(result[1] == env.task.illegal_reward)


def test_the_order_of_the_steps_counts_under_given() -> None:
    # Ops 0 (1 s) and 1 (1 s) on one device; 1 feeds 2 (5 s) on the other
    graph = DataflowGraph.from_edges("ordered", 3, [(1, 2)])
    topology = make_topology("ideal", 2)
    costs = CostModel(
        np.repeat([[1.0], [1.0], [5.0]], 2, axis=1), np.zeros(3), np.zeros(2), np.ones(2), "test"
    )
    problem = PlacementProblem(graph, topology, costs)
    makespans = {}
    for choose in ("fifo", "given"):
        env = envs.PlacementEnv(problem=problem, choose=choose)
        env.reset(seed=0)
        for action in ([1, 0], [0, 0], [2, 1]):
            info = env.step(np.array(action))[4]
        makespans[choose] = info["simulated_makespan"]
    assert makespans == {"fifo": 7.0, "given": 6.0}


def test_measured_reward_is_the_measured_makespan() -> None:
    env = envs.MeasuredPlacementEnv(workload="ffnn", num_shards=4, repeats=3)
    assert env.task.problem.num_devices == 2
    for _ in range(2):
        env.reset(seed=0)
        steps, info = play(env, np.random.default_rng(0))
        assert 0 < info["measured_makespan"] < 60
        assert steps[-1][1] == pytest.approx(-info["measured_makespan"] / env.task.time_unit)
        assert info["measured_makespan"] != info["simulated_makespan"]
    assert env.task.illegal_reward < -10
    env.close()
    env.close()


def make_vector(num_envs: int, mode: str, **options: Any) -> Any:
    extra = {} if mode != "sync" else {
        "vector_kwargs": {"autoreset_mode": AutoresetMode.SAME_STEP}
    }  # fmt: skip
    return gymnasium.make_vec(
        "doppler/Placement-v0", num_envs=num_envs, vectorization_mode=mode, **extra,
        **{**SMALL, **options},
    )  # fmt: skip


def test_vector_environment_equals_single_ones() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours, single = make_vector(4, "vector_entry_point"), make_vector(4, "sync")
    assert isinstance(ours, envs.PlacementVectorEnv)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert ours.observation_space == single.observation_space
    assert ours.action_space == single.action_space
    assert data_equivalence(ours.reset(seed=1), single.reset(seed=1))
    rng = np.random.default_rng(0)
    ends = 0
    for step in range(70):
        masks = ours.action_masks()
        np.testing.assert_array_equal(masks, np.stack(single.call("action_masks")))
        ops = [rng.choice(np.flatnonzero(row[:-2])) for row in masks]
        if step in (4, 40):
            ops[1] = int(np.flatnonzero(~masks[1, :-2])[0])  # illegal: the episodes drift apart
        actions = np.stack([ops, rng.integers(2, size=4)], axis=1)
        observation, rewards, terminations, truncations, infos = ours.step(actions)
        others = single.step(actions)
        assert ours.observation_space.contains(observation)
        assert data_equivalence(observation, others[0])
        np.testing.assert_array_equal(rewards, others[1])
        np.testing.assert_array_equal(terminations, others[2])
        np.testing.assert_array_equal(truncations, others[3])
        assert data_equivalence(dict(sorted(infos.items())), dict(sorted(others[4].items())))
        ends += terminations.sum()
    assert ends >= 8
    ours.close(), single.close()


def test_make_vec_uses_our_environment_by_default_and_resets_by_mask() -> None:
    env = gymnasium.make_vec("doppler/Placement-v0", num_envs=2, problem=tiny_problem())
    assert isinstance(env.unwrapped, envs.PlacementVectorEnv)
    env.reset(seed=[3, 4])
    env.step(np.array([[0, 0], [0, 1]]))
    observation, _ = env.reset(options={"reset_mask": np.array([False, True])})
    assert observation["devices"].tolist() == [[0, -1, -1], [-1, -1, -1]]
    with pytest.raises(ConfigurationError, match=r"actions: shape \(3, 2\), expected \(2, 2\)"):
        env.step(np.zeros((3, 2), int))
    copy = pickle.loads(pickle.dumps(env))
    assert data_equivalence(copy.step(np.array([[1, 0], [1, 0]])), env.step([[1, 0], [1, 0]]))


def test_maskable_ppo_takes_legal_actions_only() -> None:
    import torch
    from sb3_contrib import MaskablePPO

    torch.set_num_threads(1)
    for env_id in ("doppler/Placement-v0", "doppler/PlacementFlat-v0"):
        env = gymnasium.make(env_id, problem=tiny_problem())
        reasons: list[str] = []
        step = env.unwrapped.step

        def watched(action: Any, step: Any = step, reasons: list[str] = reasons) -> Any:
            result = step(action)
            reasons.append(result[4].get("illegal_action", ""))
            return result

        env.unwrapped.step = watched
        model = MaskablePPO("MultiInputPolicy", env, n_steps=32, batch_size=32, n_epochs=1, seed=0)
        model.learn(96)
        assert len(reasons) >= 96 and not any(reasons)


def test_critical_path_played_through_the_environment_is_the_scheduler() -> None:
    env = envs.PlacementEnv(workload="chainmm", network="contention_free")
    problem = env.task.problem
    simulator = Simulator(problem, network="contention_free")
    placement = CriticalPath(ties="id").schedule(problem, simulator, np.random.default_rng(0))
    env.reset(seed=0)
    for op in placement.order:
        _, reward, terminated, _, info = env.step(np.array([op, placement.devices[op]]))
    assert terminated
    assert info["simulated_makespan"] == placement.info["simulated_makespan"]
    assert reward == -info["simulated_makespan"] / env.task.time_unit


def test_rendering() -> None:
    env = envs.PlacementEnv(problem=tiny_problem(), render_mode="ansi")
    env.reset(seed=0)
    env.step(np.array([1, 1]))
    assert env.render() == (
        "tiny: 1 of 3 ops placed\ncandidates: 0\ndevice 0 (a), free at 0 s: none\n"
        "device 1 (b), free at 1 s: 1\n"
    )
    vector = envs.PlacementVectorEnv(2, problem=tiny_problem(), render_mode="ansi")
    vector.reset(seed=0)
    assert [text.splitlines()[0] for text in vector.render()] == ["tiny: 0 of 3 ops placed"] * 2
    picture = envs.PlacementEnv(problem=tiny_problem(), render_mode="rgb_array")
    picture.reset(seed=0)
    frames = [picture.render()]
    for action in ([0, 0], [1, 1], [2, 0]):
        picture.step(np.array(action))
        frames.append(picture.render())
    assert frames[0].dtype == np.uint8 and frames[0].ndim == 3 and frames[0].shape[2] == 3
    assert all((a != b).any() for a, b in pairwise(frames))
    assert envs.PlacementEnv(problem=tiny_problem()).render() is None


def test_problem_files(tmp_path: Path) -> None:
    path = tmp_path / "tiny.json"
    save_problem(tiny_problem(), path)
    env = gymnasium.make("doppler/Placement-v0", problem=str(path))
    assert env.unwrapped.task.problem.num_ops == 3
    with pytest.raises(FileFormatError, match="no such file"):
        envs.PlacementEnv(problem=tmp_path / "absent.json")


def test_published_file(shared_data: Path) -> None:
    env = envs.PlacementFlatEnv(
        problem=shared_data / "doppler" / "gdp_ffnn_192nodes.txt",
        num_devices=4,
        network="contention_free",
    )
    env.reset(seed=0)
    steps, info = play(env, np.random.default_rng(0))
    assert len(steps) == 180
    assert steps[-1][1] == pytest.approx(-info["simulated_makespan"] / env.task.time_unit)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"workload": "resnet"}, "workload 'resnet' is unknown"),
        ({"topology": "tpu"}, "topology 'tpu' is unknown"),
        ({"scale": "huge"}, "scale: 'huge' is unknown"),
        ({"network": "bus"}, "network 'bus' is unknown"),
        ({"choose": "best"}, "best"),
        ({"render_mode": "human"}, "render_mode: 'human' is not one of ansi, rgb_array"),
        ({"problem": tiny_problem(), "workload": "ffnn"}, "workload: 'ffnn' is of no use together"),
        ({"problem": tiny_problem(), "num_devices": 3}, "num_devices: 3, but problem 'tiny' has 2"),
        ({"illegal_reward": float("nan")}, "illegal_reward: nan is not finite"),
    ],
)
def test_wrong_arguments_are_refused(options: dict, message: str) -> None:
    for cls in (envs.PlacementEnv, envs.PlacementVectorEnv):
        with pytest.raises(ConfigurationError, match=message):
            cls(**options)


def test_wrong_arguments_of_the_measured_environment_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="needs a workload, which has kernels"):
        envs.MeasuredPlacementEnv(problem=tiny_problem())
    with pytest.raises(ConfigurationError, match="repeats: 0 is below 1"):
        envs.MeasuredPlacementEnv(repeats=0)


def test_made_by_module_prefix_without_heavy_imports() -> None:
    code = (
        "import sys, gymnasium\n"
        "env = gymnasium.make('envs:doppler/Placement-v0', workload='ffnn', num_devices=4)\n"
        "env.reset(seed=0)\n"
        "assert env.unwrapped.task.problem.num_devices == 4\n"
        "heavy = {'torch', 'matplotlib', 'wandb', 'stable_baselines3'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
