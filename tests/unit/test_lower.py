"""Lowering: fused operators are computed once, buffers share memory where allowed, equal kernels are merged."""

from __future__ import annotations

import numpy as np

from mlfc import transform
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir import visitor
from mlfc.tir.interpreter import run
from mlfc.tir.ir import Let
from mlfc.tir.program import Program
from mlfc.transform.lower_group import lower_group

FEATURES = Features()


def program(body: ir.Expr, *inputs: ir.Var) -> Program:
    module = ir.IRModule({"main": ir.Function(inputs, body)})
    return transform.lower(transform.run(module, {}), FEATURES)


def var(name: str, *shape: int) -> ir.Var:
    return ir.Var(name, ir.TensorType(shape, "float32"))


def test_elementwise_chain_is_one_flat_loop_that_may_overwrite_its_input() -> None:
    x = var("x", 2, 3, 5)
    lowered = program(ir.call("nn.relu", [ir.call("add", [x, ir.const(1.0)])]), x)
    (call,) = lowered.calls
    assert call.kernel.inputs[0].shape == (30,)
    assert call.kernel.inplace == (0,)
    data = np.linspace(-4, 4, 30, dtype=np.float32)
    np.testing.assert_array_equal(run(call.kernel, [data], []), np.maximum(data + 1, 0))


def test_value_used_twice_in_a_group_is_computed_once() -> None:
    x = var("x", 8)
    shared = ir.call("exp", [x])
    lowered = program(ir.call("multiply", [shared, ir.call("add", [shared, ir.const(2.0)])]), x)
    (call,) = lowered.calls
    calls = [
        node
        for stmt in visitor.walk(call.kernel.body)
        for expr in visitor.own_exprs(stmt)
        for node in visitor.walk_expr(expr)
        if getattr(node, "name", "") == "exp_f32"
    ]
    assert len(calls) == 1
    assert any(isinstance(stmt, Let) for stmt in visitor.walk(call.kernel.body))


def test_transposed_input_may_not_be_overwritten() -> None:
    x = var("x", 4, 4)
    lowered = program(ir.call("add", [ir.call("transpose", [x], axes=(1, 0)), x]), x)
    assert lowered.calls[0].kernel.inplace == ()


def test_equal_kernels_are_emitted_once() -> None:
    x = var("x", 1, 6, 6, 4)
    rng = np.random.default_rng(0)
    body: ir.Expr = x
    for _ in range(3):
        weight = ir.const(rng.standard_normal((3, 3, 4, 4)).astype(np.float32))
        body = ir.call(
            "nn.conv2d", [body, weight], padding=(1, 1, 1, 1), channels=4, kernel_size=(3, 3),
            data_layout="NHWC", kernel_layout="HWIO",
        )  # fmt: skip
    lowered = program(body, x)
    assert len(lowered.calls) == 3
    assert len(lowered.kernels) == 1
    assert len({id(constant) for call in lowered.calls for constant in call.constants}) == 3


def test_outputs_that_are_inputs_views_or_repeated_have_storage_of_their_own() -> None:
    x = var("x", 2, 3)
    y = ir.call("nn.relu", [x])
    view = ir.call("reshape", [y], newshape=(6,))
    lowered = program(ir.Tuple((x, y, view, y)), x)
    assert [value.name for value in lowered.outputs] == ["output0", "output1", "output2", "output3"]
    roots = [value.root for value in lowered.outputs]
    assert len({id(root) for root in roots}) == 4
    assert all(root.kind == "output" for root in roots)
    assert lowered.outputs[2].shape == (6,)


def test_a_value_shared_behind_guards_is_read_inside_its_bounds() -> None:
    x = var("x", 3)
    shared = ir.call("exp", [x])
    pads = [ir.call("nn.pad", [shared, ir.const(np.float32(value))], pad_width=((0, 2),)) for value in (0, 1)]
    group = lower_group(ir.Function((x,), ir.call("add", pads), {"Primitive": 1}), Features())
    data = np.asarray([0, 1, 2], np.float32)
    np.testing.assert_allclose(run(group.prim, [data]), [*(2 * np.exp(data)), 1, 1], rtol=1e-6)


def test_a_long_chain_of_rules_that_name_their_argument_twice_stays_small() -> None:
    x = var("x", 3)
    body: ir.Expr = x
    for _ in range(60):
        body = ir.call("nn.leaky_relu", [body], alpha=0.5)
    group = lower_group(ir.Function((x,), body, {"Primitive": 1}), Features())
    nodes = sum(1 for stmt in visitor.walk(group.prim.body) for expr in visitor.own_exprs(stmt)
                for _ in visitor.walk_expr(expr))  # fmt: skip
    assert nodes < 60 * 20
    assert group.prim.inplace == (0,)
    result = run(group.prim, [np.asarray([-1, 0, 3], np.float32)])
    np.testing.assert_array_equal(result, [-(0.5**60), 0, 3])


def test_an_output_without_a_name_is_an_output() -> None:
    x = var("x", 8)
    module = ir.IRModule({"main": ir.Function((x,), ir.call("exp", [x]))}, ("",))
    lowered = transform.lower(transform.run(module, {}), FEATURES)
    (output,), (call,) = lowered.outputs, lowered.calls
    assert output is call.output
    assert (output.name, output.kind) == ("", "output")
