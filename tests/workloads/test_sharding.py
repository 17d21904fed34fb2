"""The tensor language and its sharding on tiny programs whose shards are written down by hand."""

from __future__ import annotations

import pytest
import torch

from doppler.errors import ConfigurationError, ExecutionError
from doppler.workloads import (
    Input,
    Kernel,
    PartitionPlan,
    Statement,
    TensorProgram,
    build_workload,
    deal_parts,
    einsum,
    elementwise,
    rotary,
    row_reduction,
    select,
    shard,
    softmax,
)


def program(*statements, outputs=None, sizes=None, inputs=None):
    return TensorProgram(
        name="tiny",
        sizes=sizes or {"i": 4, "j": 6, "k": 8, "r": 4},
        inputs=inputs or (Input("x", "ik"), Input("w", "kj")),
        statements=statements,
        outputs=outputs or (statements[-1].name,),
    )


def run(workload, inputs):
    outputs = {}
    for op, kernel in enumerate(workload.kernels):
        outputs[op] = kernel.run(
            [outputs[i] if source == "op" else inputs[i] for source, i in workload.operands[op]]
        )
    return outputs


def assert_agrees(tensor_program, plan):
    workload = build_workload("tiny", "tiny", tensor_program, plan, dtype="float64")
    inputs = workload.make_inputs(0)
    found = workload.collect(run(workload, inputs))
    for name, expected in workload.reference(inputs).items():
        torch.testing.assert_close(found[name], expected, rtol=1e-12, atol=1e-12)
    return workload


@pytest.mark.parametrize(
    ("num_shards", "labels", "expected"),
    [
        (16, "ikj", {"i": 4, "k": 2, "j": 2}),
        (1, "ab", {"a": 1, "b": 1}),
        (12, "ab", {"a": 6, "b": 2}),  # 3, 2, 2 in turn
        (7, "ab", {"a": 7, "b": 1}),
    ],
)
def test_deal_parts(num_shards, labels, expected):
    assert deal_parts(num_shards, labels) == expected


def test_cut_contraction_leaves_partials_and_one_reduction_per_tile():
    """i in 2, k in 2: two partial products per output tile, then one sum."""
    sharded = shard(program(einsum("y", "ik,kj->ij", "x", "w")), PartitionPlan({"i": 2, "k": 2}))
    assert sharded.names == [
        "y[i0,k0]",
        "y[i0,k1]",
        "y[i1,k0]",
        "y[i1,k1]",
        "y.sum[0:2,0:6]",
        "y.sum[2:4,0:6]",
    ]
    assert sharded.roles == ["shard"] * 4 + ["reduction"] * 2
    assert sharded.meta_op == [0] * 6
    assert sharded.edges == [(0, 4), (1, 4), (2, 5), (3, 5)]
    assert [tile.name for tile in sharded.input_tiles] == [
        "x[0:2,0:4]",
        "w[0:4,0:6]",
        "x[0:2,4:8]",
        "w[4:8,0:6]",
        "x[2:4,0:4]",
        "x[2:4,4:8]",
    ]
    assert [kernel.flops for kernel in sharded.kernels] == [96.0] * 4 + [12.0] * 2


def test_partial_products_add_up_to_the_product():
    tensor_program = program(einsum("y", "ik,kj->ij", "x", "w"))
    workload = build_workload("t", "t", tensor_program, PartitionPlan({"k": 4}), dtype="float64")
    inputs = workload.make_inputs(1)
    outputs = run(workload, inputs)
    total = outputs[0] + outputs[1] + outputs[2] + outputs[3]
    assert torch.equal(outputs[4], total)
    torch.testing.assert_close(total, workload.reference(inputs)["y"], rtol=1e-12, atol=1e-12)


def test_another_tiling_is_assembled_once_and_shared():
    """y is produced in row halves; z needs whole columns, so two assemblies serve four kernels."""
    tensor_program = program(
        einsum("y", "ik,kj->ij", "x", "w"),
        einsum("z", "ij,ir->jr", "y", "u"),
        inputs=(Input("x", "ik"), Input("w", "kj"), Input("u", "ir")),
    )
    plan = PartitionPlan({"i": 2}, overrides={"z": {"i": 1, "j": 2, "r": 2}})
    sharded = shard(tensor_program, plan)
    assert sharded.names == [
        "y[i0]",
        "y[i1]",
        "y.assembly[0:4,0:3]",
        "z[j0,r0]",
        "z[j0,r1]",
        "y.assembly[0:4,3:6]",
        "z[j1,r0]",
        "z[j1,r1]",
    ]
    assert sharded.edges == [
        (0, 2), (1, 2), (2, 3), (2, 4), (0, 5), (1, 5), (5, 6), (5, 7),
    ]  # fmt: skip
    assert sharded.roles[2] == sharded.roles[5] == "assembly"
    assert sharded.meta_op == [0, 0, 0, 1, 1, 0, 1, 1]  # an assembly belongs to its producer
    assert dict(sharded.kernels[5].options)["pieces"] == (
        (((0, 2), (0, 3)), ((0, 2), (3, 6))),
        (((2, 4), (0, 3)), ((0, 2), (3, 6))),
    )
    assert_agrees(tensor_program, plan)


def test_matching_tiles_are_used_as_they_are():
    plan = PartitionPlan({"i": 2, "j": 3})
    tensor_program = program(
        einsum("y", "ik,kj->ij", "x", "w"), elementwise("z", "relu", "ij->ij", "y")
    )
    assert "assembly" not in shard(tensor_program, plan).roles


def test_a_cut_row_maximum_is_combined_by_maximum():
    tensor_program = program(row_reduction("m", "max", "ik->i", "x"), inputs=(Input("x", "ik"),))
    workload = assert_agrees(tensor_program, PartitionPlan({"k": 4}))
    assert workload.graph.roles == ("shard",) * 4 + ("reduction",)
    assert workload.kernels[4].function == "max"


@pytest.mark.parametrize("function", ["sum", "sum_squares"])
def test_row_sums_over_cut_and_transposed_labels(function):
    row = row_reduction("m", function, "ikj->ji", "x")
    tensor_program = program(row, inputs=(Input("x", "ikj"),))
    assert_agrees(tensor_program, PartitionPlan({"k": 2, "i": 2}))


def test_select_takes_only_the_tiles_that_hold_the_slice():
    tensor_program = program(
        einsum("y", "ik,kj->ij", "x", "w"),
        select("last", "ij->ir", "y", start=5),
        outputs=("y", "last"),
        sizes={"i": 4, "j": 6, "k": 8, "r": 1},
    )
    workload = assert_agrees(tensor_program, PartitionPlan({"i": 2, "j": 2}))
    selects = [op for op in range(workload.graph.num_ops) if workload.graph.kinds[op] == "select"]
    assert [list(workload.graph.predecessors(op)) for op in selects] == [[1], [3]]
    assert [workload.graph.roles[op] for op in selects] == ["shard", "shard"]


def test_select_across_tiles_and_from_an_input():
    tensor_program = program(
        select("a", "ik->ij", "x", start=1),
        elementwise("b", "exp", "ij->ij", "a"),
        select("c", "ij->ir", "b", start=1),
        inputs=(Input("x", "ik"),),
        sizes={"i": 4, "k": 8, "j": 6, "r": 4},
    )
    assert_agrees(tensor_program, PartitionPlan({"i": 2}, overrides={"b": {"j": 3}}))


@pytest.mark.parametrize(
    "statement",
    [
        elementwise("y", "mul", "ik,k->ki", "x", "g"),
        elementwise("y", "sub_log", "ik,ik->ik", "p", "p"),
        einsum("y", "ik->ki", "x"),
        einsum("y", "ik->i", "x"),
    ],
    ids=lambda statement: statement.spec,
)
def test_permuted_and_single_operand_statements(statement):
    inputs = {
        "x": Input("x", "ik"),
        "g": Input("g", "k"),
        "p": Input("p", "ik", options=(("mean", 9.0),)),
    }
    used = tuple(inputs[name] for name in dict.fromkeys(statement.operands))
    assert_agrees(program(statement, inputs=used), PartitionPlan({"i": 2, "k": 2}))


def test_results_never_alias_an_operand():
    x = torch.randn(3, 4)
    kernel = Kernel("einsum", "einsum", "ij->ij", ((3, 4),), (3, 4))
    result = kernel.run([x])
    assert torch.equal(result, x)
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()


def test_elementwise_functions_by_hand():
    def run_one(function, spec, *values, **options):
        operands = [torch.tensor([value], dtype=torch.float64) for value in values]
        shapes = ((1,),) * len(values)
        kernel = Kernel(
            "elementwise", function, spec, shapes, (1,), tuple(options.items()), "float64"
        )
        return kernel.run(operands).item()

    two = "i,i->i"
    assert run_one("add", two, 3.0, 4.0) == 7.0
    assert run_one("sub", two, 3.0, 4.0) == -1.0
    assert run_one("mul", two, 3.0, 4.0) == 12.0
    assert run_one("div", two, 3.0, 4.0) == 0.75
    assert run_one("sub_log", two, 3.0, 1.0) == 3.0
    assert run_one("relu", "i->i", -3.0) == 0.0
    assert run_one("exp", "i->i", 0.0) == 1.0
    assert run_one("scale", "i->i", 3.0, factor=0.5) == 1.5
    assert run_one("silu", "i->i", 1.0) == pytest.approx(0.7310585786)
    assert run_one("gelu", "i->i", 1.0) == pytest.approx(0.8411919906)
    assert run_one("inverse_root", "i->i", 6.0, count=2, epsilon=1.0) == 0.5


def test_kernel_work_bytes_and_signature():
    kernel = Kernel("einsum", "einsum", "bik,kj->bij", ((2, 3, 4), (4, 5)), (2, 3, 5))
    assert kernel.flops == 2 * 2 * 3 * 4 * 5
    assert kernel.output_bytes == 2 * 3 * 5 * 4
    assert kernel.signature == "einsum|einsum|bik,kj->bij||2x3x4,4x5->2x3x5|float32"
    assert Kernel("softmax", "softmax", "ij->ij", ((2, 3),), (2, 3)).flops == 30
    assert Kernel("row_reduction", "sum_squares", "ij->i", ((2, 3),), (2,)).flops == 12
    assert Kernel("assembly", "gather", "", ((2, 3),), (2, 3)).flops == 0
    with pytest.raises(ExecutionError, match=r"operands of shapes \(\(1, 2\),\)"):
        kernel.run([torch.zeros(1, 2)])


def softmax_over_k():
    return program(softmax("p", "ik->ik", "x", over="k"), inputs=(Input("x", "ik"),))


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (PartitionPlan({"k": 2}), "label 'k' is cut into 2, but softmax needs it whole"),
        (PartitionPlan({"i": 3}), "label 'i' of size 4 cannot be cut into 3 equal parts"),
        (PartitionPlan({"i": 0}), "label 'i' of size 4 cannot be cut into 0"),
        (PartitionPlan({"q": 2}), "cuts a label 'q' that is not in it"),
        (PartitionPlan({}, {"s": {"i": 2}}), "cuts a statement 's' that is not in it"),
    ],
)
def test_plans_that_do_not_fit_are_refused(plan, message):
    with pytest.raises(ConfigurationError, match=message):
        shard(softmax_over_k(), plan)


def test_rotary_needs_its_label_whole():
    tensor_program = program(
        rotary("y", "ik,ir,ir->ik", ("x", "c", "s"), over="k"),
        inputs=(Input("x", "ik"), Input("c", "ir"), Input("s", "ir")),
    )
    assert_agrees(tensor_program, PartitionPlan({"i": 2}))
    for label in "kr":
        with pytest.raises(ConfigurationError, match=f"label '{label}' is cut into 2, but rotary"):
            shard(tensor_program, PartitionPlan({label: 2}))


@pytest.mark.parametrize(
    ("statements", "message"),
    [
        ([einsum("y", "ik,kj->ij", "x", "v")], "operand 'v' is not defined before it"),
        ([einsum("y", "ik,kj->ij", "x")], "1 operands for the spec"),
        ([einsum("y", "ij,jk->ik", "x", "w")], "operand 'x' has labels 'ik' and shape"),
        ([einsum("y", "ik,kj->ijz", "x", "w")], "label 'z' has size None"),
        ([einsum("y", "ik,kj->iij", "x", "w")], "a label is repeated in 'iij'"),
        ([einsum("y", "ik,kj->ir", "x", "w")], "no operand has the output's label 'r'"),
        ([einsum("x", "ik,kj->ij", "x", "w")], "'x' is defined twice"),
        ([einsum("y", "ik->i", "x")], "nothing uses 'w'"),
        ([elementwise("y", "tanh", "ik->ik", "x")], "no elementwise function 'tanh'; the"),
        ([elementwise("y", "add", "ik->ik", "x")], "'add' takes 2 operands, not 1"),
        ([elementwise("y", "relu", "ik->i", "x")], "cannot drop label k"),
        ([row_reduction("y", "median", "ik->i", "x")], "no row_reduction function 'median'"),
        ([select("y", "ik->ij", "x", start=3)], "start 3 leaves the operand"),
        ([select("y", "ik->ki", "x", start=0)], "a select replaces exactly one label"),
        ([Statement("y", "sort", "sort", "ik->ik", ("x",))], "no kind 'sort'; the kinds are"),
    ],
)
def test_statements_that_do_not_fit_are_refused(statements, message):
    with pytest.raises(ConfigurationError, match=message):
        program(*statements)


def test_outputs_must_be_statements():
    with pytest.raises(ConfigurationError, match="output 'w' is no statement"):
        program(einsum("y", "ik,kj->ij", "x", "w"), outputs=("w",))


def test_unknown_fill_is_named():
    tensor_program = program(
        elementwise("y", "relu", "ik->ik", "x"), inputs=(Input("x", "ik", fill="ones"),)
    )
    workload = build_workload("t", "t", tensor_program, PartitionPlan({}))
    with pytest.raises(ConfigurationError, match="no fill 'ones'; the fills are normal"):
        workload.make_inputs(0)
