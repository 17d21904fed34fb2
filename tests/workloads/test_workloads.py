"""Every workload: sharded results equal unsharded ones, and its graph says what it should."""

from __future__ import annotations

import math
import pickle
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch

from doppler.errors import ConfigurationError, ExecutionError
from doppler.graph.dataflow_graph import ROLES
from doppler.hardware import make_topology
from doppler.workloads import WORKLOADS, Workload, make_workload
from doppler.workloads.inputs import MASKED, draw_inputs

LLAMA = {"batch": 2, "sequence": 16, "hidden": 32, "feed_forward": 48, "heads": 4}
SMALL = {
    "chainmm": {"block": 8},
    "ffnn": {"batch": 32, "features": 24, "hidden": 64, "classes": 16},
    "llama_block": LLAMA,
    "llama_layer": {**LLAMA, "vocabulary": 64},
}
TOLERANCE = 2e-5  # relative to the largest value, for float32


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def execute(workload: Workload, inputs: list[torch.Tensor]) -> dict[int, torch.Tensor]:
    """Runs every kernel in topological order; checks shapes and that no memory is shared."""
    outputs: dict[int, torch.Tensor] = {}
    for op in workload.graph.topological_order:
        kernel = workload.kernels[op]
        operands = [
            outputs[i] if source == "op" else inputs[i] for source, i in workload.operands[op]
        ]
        result = kernel.run(operands)
        assert tuple(result.shape) == kernel.output_shape
        assert result.is_contiguous()
        assert result.nbytes == kernel.output_bytes == workload.graph.output_bytes[op]
        assert all(
            result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() for x in operands
        )
        outputs[int(op)] = result
    return outputs


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.abs().max())


def root_mean_square_norm(x: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, (x.shape[-1],), gain, eps=1e-5)


def turned(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding by complex multiplication. # (batch, positions, heads, width)"""
    half = x.shape[-1] // 2
    angles = torch.outer(
        torch.arange(x.shape[1], dtype=torch.float64),
        10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half),
    )
    rotation = torch.polar(torch.ones_like(angles), angles)[None, :, None, :]
    z = torch.complex(x[..., :half].double(), x[..., half:].double()) * rotation
    return torch.cat([z.real, z.imag], dim=-1).float()


def independent_results(name: str, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What each workload should compute, written with torch's own layers."""
    functional = torch.nn.functional
    if name == "chainmm":
        return {"sum": x["A"] @ x["B"] + x["C"] @ (x["D"] @ x["E"])}
    if name == "ffnn":
        active = functional.linear(x["x"], x["W1"].T, x["b1"]).relu()
        logits = functional.linear(active, x["W2"].T, x["b2"])
        return {"log_probabilities": functional.log_softmax(logits, dim=-1)}
    normed = root_mean_square_norm(x["x"], x["gain1"])
    q, k, v = (torch.tensordot(normed, x[w], dims=1) for w in ("Wq", "Wk", "Wv"))
    attention = functional.scaled_dot_product_attention(
        turned(q).transpose(1, 2),
        turned(k).transpose(1, 2),
        v.transpose(1, 2),
        is_causal=name == "llama_layer",
    )
    attended = x["x"] + torch.tensordot(attention.transpose(1, 2), x["Wo"], dims=2)
    normed = root_mean_square_norm(attended, x["gain2"])
    gated = functional.silu(normed @ x["Wgate"]) * (normed @ x["Wup"])
    results = {"y": attended + gated @ x["Wdown"]}
    if name == "llama_layer":
        last = root_mean_square_norm(results["y"][:, -1:], x["gain3"])
        results["logits"] = last @ x["Whead"]
    return results


@pytest.mark.parametrize("num_shards", [1, 2, 4, 8, 16])
@pytest.mark.parametrize("name", WORKLOADS)
def test_sharded_equals_unsharded_and_independent_results(name, num_shards):
    workload = make_workload(name, num_shards=num_shards, **SMALL[name])
    inputs = workload.make_inputs(seed=3)
    found = workload.collect(execute(workload, inputs))
    reference = workload.reference(inputs)
    independent = independent_results(name, draw_inputs(workload.program, "float32", seed=3))
    assert set(found) == set(reference) == set(independent)
    for key, value in independent.items():
        assert relative_error(found[key], value) < TOLERANCE
        assert relative_error(reference[key], value) < TOLERANCE


@pytest.mark.parametrize("name", WORKLOADS)
def test_host_scale_agrees_and_is_of_order_one(name):
    workload = make_workload(name)
    inputs = workload.make_inputs(seed=0)
    found = workload.collect(execute(workload, inputs))
    for key, value in workload.reference(inputs).items():
        assert relative_error(found[key], value) < TOLERANCE
        assert 0.5 < float(value.std()) < 2.0


@pytest.mark.parametrize(
    ("name", "num_ops", "num_edges", "num_inputs"),
    [
        ("chainmm", 76, 80, 36),  # as published, exactly
        ("ffnn", 176, 208, 30),  # published: 180, 208
        ("llama_block", 176, 220, 24),  # published: 182, 234
        ("llama_layer", 202, 248, 31),  # published: 229, 284
    ],
)
@pytest.mark.parametrize("scale", ["host", "paper"])
def test_graph_sizes_are_near_the_published_ones(name, num_ops, num_edges, num_inputs, scale):
    graph = make_workload(name, scale=scale).graph
    assert (graph.num_ops, graph.num_edges, graph.num_inputs) == (num_ops, num_edges, num_inputs)


@pytest.mark.parametrize("scale", ["host", "paper"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_graph_kernels_and_operands_agree(name, scale):
    workload = make_workload(name, scale=scale)
    graph = workload.graph
    assert len(workload.kernels) == len(workload.operands) == graph.num_ops
    assert graph.num_inputs == len(workload.input_tiles) < graph.num_ops
    assert set(graph.roles) <= set(ROLES) and {"shard", "reduction"} <= set(graph.roles)
    assert len(set(graph.op_names)) == graph.num_ops
    assert set(graph.meta_op) == set(range(len(workload.program.statements)))
    used = set()
    for op, operands in enumerate(workload.operands):
        producers = sorted({i for source, i in operands if source == "op"})
        assert producers == list(graph.predecessors(op))
        shapes = [
            workload.kernels[i].output_shape if source == "op" else workload.input_tiles[i].shape
            for source, i in operands
        ]
        assert tuple(shapes) == workload.kernels[op].operand_shapes
        used |= {i for source, i in operands if source == "input"}
    assert used == set(range(graph.num_inputs))
    exits = set(np.flatnonzero(graph.out_degrees == 0))
    assert exits <= set(workload.output_ops)  # nothing is computed in vain


@pytest.mark.parametrize("name", WORKLOADS)
def test_equal_signatures_mean_equal_work(name):
    workload = make_workload(name)
    by_signature = {}
    for kernel in workload.kernels:
        assert by_signature.setdefault(kernel.signature, kernel) == kernel
    assert len(by_signature) <= 25  # few enough to time each one in a calibration


def products(name: str, sizes: dict[str, int]) -> float:
    """FLOP of all matrix products, by hand."""
    if name == "chainmm":
        block = sizes["block"] ** 3
        return 2.0 * (16 + 16 + 16) * block
    if name == "ffnn":
        return 2.0 * sizes["batch"] * sizes["hidden"] * (sizes["features"] + sizes["classes"])
    d, s = sizes["hidden"], sizes["sequence"]
    tokens = sizes["batch"] * s
    attention = 4 * tokens * d * d + 2 * tokens * s * d
    head = sizes["batch"] * d * sizes.get("vocabulary", 0)
    return 2.0 * (attention + 3 * tokens * d * sizes["feed_forward"] + head)


@pytest.mark.parametrize("num_shards", [2, 16])
@pytest.mark.parametrize("scale", ["host", "paper"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_flops_of_products_equal_the_formula(name, scale, num_shards):
    graph = make_workload(name, scale=scale, num_shards=num_shards).graph
    einsums = np.array([kind == "einsum" for kind in graph.kinds])
    expected = products(name, dict(WORKLOADS[name].sizes[scale]))
    assert math.isclose(graph.flops[einsums].sum(), expected, rel_tol=1e-12)
    assert graph.flops.sum() < 1.05 * expected  # the bulk is in products


def test_chainmm_is_cut_like_the_published_graph():
    workload = make_workload("chainmm", scale="paper")
    graph = workload.graph
    rows = Counter(zip(graph.kinds, graph.flops, graph.output_bytes, graph.in_degrees))
    assert rows == {
        ("einsum", 2e12, 4e8, 0): 32,
        ("reduction", 1e8, 4e8, 2): 16,
        ("reduction", 3e8, 4e8, 4): 4,
        ("einsum", 2e12, 4e8, 1): 16,
        ("elementwise", 1e8, 4e8, 2): 8,
    }
    assert Counter(tile.input for tile in workload.input_tiles) == {
        "A": 8, "B": 4, "C": 8, "D": 8, "E": 8,
    }  # fmt: skip
    assert graph.op_names[0] == "AB[i0,j0,k0]" and graph.roles[0] == "shard"


def test_paper_magnitudes():
    def largest_product(name):
        kernels = make_workload(name, scale="paper").kernels
        return max(kernel.flops for kernel in kernels if kernel.kind == "einsum")

    assert largest_product("ffnn") == 2 * 2**36  # the published amounts count multiply-adds
    assert largest_product("llama_block") == 2 * 184683593728
    layer = make_workload("llama_layer", scale="paper")
    shapes = {x.name: layer.program.shape(x.labels) for x in layer.program.inputs}
    assert shapes["Wq"] == (4096, 32, 128)
    assert shapes["Wdown"] == (11008, 4096)
    assert shapes["Whead"] == (4096, 32_000)


def test_neither_import_nor_paper_problems_touch_torch():
    code = (
        "import sys\n"
        "from doppler.workloads import WORKLOADS, make_workload\n"
        "from doppler.hardware import make_topology\n"
        "for name in WORKLOADS:\n"
        "    problem = make_workload(name, scale='paper').problem(make_topology('p100', 4))\n"
        "    assert problem.num_devices == 4\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_problem_takes_a_given_cost_model():
    workload = make_workload("chainmm", **SMALL["chainmm"])
    topology = make_topology("cpu", 2)
    roofline = workload.problem(topology)
    assert "roofline" in roofline.cost_model.source
    doubled = roofline.cost_model.scaled(2.0)
    assert workload.problem(topology, doubled).cost_model is doubled


def test_inputs_are_seeded_and_their_own():
    workload = make_workload("llama_layer", **SMALL["llama_layer"])
    first, second, other = (workload.make_inputs(seed) for seed in (5, 5, 6))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not all(torch.equal(a, b) for a, b in zip(first, other))
    for tile, tensor in zip(workload.input_tiles, first):
        assert tuple(tensor.shape) == tile.shape and tensor.is_contiguous()
    assert len({x.untyped_storage().data_ptr() for x in first}) == len(first)


def test_mask_and_rotary_tables():
    inputs = draw_inputs(make_workload("llama_layer", **SMALL["llama_layer"]).program, "float32", 0)
    assert inputs["mask"][2, :5].tolist() == [0.0, 0.0, 0.0, MASKED, MASKED]
    assert inputs["cos"][0].tolist() == [1.0] * 4
    assert inputs["sin"][3, 1].item() == pytest.approx(math.sin(3 * 10_000 ** (-1 / 4)))


def test_only_output_ops_are_collected():
    workload = make_workload("ffnn", **SMALL["ffnn"])
    outputs = execute(workload, workload.make_inputs(0))
    kept = {op: outputs[op] for op in workload.output_ops}
    assert workload.collect(kept).keys() == {"log_probabilities"}
    missing = workload.output_ops[-1]
    del kept[missing]
    with pytest.raises(ExecutionError, match=f"no output of op {missing} "):
        workload.collect(kept)
    with pytest.raises(ExecutionError, match="a tile has shape"):
        workload.collect({**outputs, missing: torch.zeros(1, 1)})
    with pytest.raises(ExecutionError, match="0 inputs for"):
        workload.reference([])


def test_roles_share_the_meta_op_of_what_they_were_cut_from():
    workload = make_workload("llama_layer")
    graph, statements = workload.graph, workload.program.statements
    for op, name in enumerate(graph.op_names):
        value = name.split("[")[0].split(".")[0]
        assert statements[graph.meta_op[op]].name == value
        if graph.roles[op] != "shard":
            assert set(graph.meta_op[graph.predecessors(op)]) == {graph.meta_op[op]}
    outputs = [
        op for op, name in enumerate(graph.op_names) if name.split("[")[0] in ("y", "logits")
    ]
    assert list(workload.output_ops) == outputs


def test_workloads_pickle():
    workload = make_workload("llama_block", **SMALL["llama_block"])
    copy = pickle.loads(pickle.dumps(workload))
    assert copy.kernels == workload.kernels and copy.operands == workload.operands


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("cnn", {}, "workload 'cnn' is unknown; the workloads are chainmm, ffnn"),
        ("ffnn", {"scale": "huge"}, "scale: 'huge' is unknown; the scales are host, paper"),
        ("ffnn", {"width": 3}, "no size 'width'; the sizes are batch, features, hidden, classes"),
        ("ffnn", {"batch": 0}, "batch: 0 is not a whole number above 0"),
        ("ffnn", {"batch": True}, "batch: True is not a whole number"),
        ("chainmm", {"num_shards": 2.0}, "num_shards: 2.0 is not a whole number"),
        ("chainmm", {"num_shards": 0}, "num_shards: 0 is not a whole number"),
        ("ffnn", {"num_shards": 7}, "statement 'xW1': label 'h' of size 5120 cannot be cut into 7"),
        ("llama_block", {"heads": 7}, "hidden 768 is not divisible by 2 x heads = 14"),
        ("llama_block", {"num_shards": 64}, "label 'b' of size 2 cannot be cut into 4 equal parts"),
    ],
)
def test_bad_options_are_named(name, options, message):
    with pytest.raises(ConfigurationError, match=message):
        make_workload(name, **options)
