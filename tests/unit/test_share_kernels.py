"""Layers that differ only in single numbers use one kernel, which gets the numbers as a constant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mlfc import transform
from mlfc.relay import ir as relay
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir import ir, visitor
from mlfc.tir.interpreter import run
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.program import KernelCall, Program, Value
from mlfc.transform.share_kernels import share_kernels
from tests.verify_tir import verify

Array = npt.NDArray[Any]
LIMITS = (1.5, 0.5, 6.0)
LEVELS = Features(levels=(("wide", Features(vector_registers=32)), ("same", Features())))


def layers(limits: tuple[float, ...] = LIMITS, paddings: tuple[int, ...] = (1, 1, 1)) -> relay.IRModule:
    """Return consecutive convolutions, each with its own scale and limits."""
    x = relay.Var("x", relay.TensorType((1, 8, 8, 8), "float32"))
    rng = np.random.default_rng(0)
    body: relay.Expr = x
    for limit, padding in zip(limits, paddings, strict=True):
        weight = relay.const(rng.standard_normal((3, 3, 8, 8)).astype(np.float32))
        body = relay.call(
            "nn.conv2d", [body, weight], padding=(padding, padding, 2 - padding, 2 - padding), channels=8,
            kernel_size=(3, 3), data_layout="NHWC", kernel_layout="HWIO",
        )  # fmt: skip
        body = relay.call("clip", [relay.call("nn.relu", [body])], a_min=-limit, a_max=limit)
    return relay.IRModule({"main": relay.Function((x,), body)})


def lowered(module: relay.IRModule, features: Features) -> Program:
    return transform.lower(transform.run(module, {}), features)


def computed(program: Program, data: Array, level: str | None = None) -> Array:
    """Return the result of a chain of calls."""
    for call in program.calls:
        kernel = call.kernel if level is None else replace(call.kernel.at(level), variants=())
        data = run(kernel, [data], [value.array for value in call.constants])
    return data


def test_layers_of_other_limits_share_a_kernel() -> None:
    shared, alone = lowered(layers(), LEVELS), lowered(layers(), replace(LEVELS, optimize="size"))
    data = np.random.default_rng(1).standard_normal((1, 8, 8, 8)).astype(np.float32)
    expected = computed(alone, data)
    assert (len(shared.kernels), len(shared.calls), len(alone.kernels)) == (1, 3, 3)
    assert expected.max() > 1  # the limits have an effect
    verify(shared.kernels[0])
    for level in (None, "wide", "same"):
        np.testing.assert_array_equal(computed(shared, data, level), expected)
    (wide,) = (variant for name, variant in shared.kernels[0].variants if name == "wide")
    assert len(wide.constants) == len(shared.kernels[0].constants) == len(shared.calls[0].constants)
    numbers = [call.constants[-1].array.tolist() for call in shared.calls]
    assert numbers == [[limit, -limit] for limit in LIMITS]


@pytest.mark.parametrize("module", [layers(paddings=(1, 2, 0)), layers((2.0,), (1,))], ids=["indices", "alone"])
def test_kernels_that_differ_in_more_or_in_nothing_get_no_numbers(module: relay.IRModule) -> None:
    program = lowered(module, Features())
    assert len(program.kernels) == len(program.calls)
    assert not any(buffer.name == "numbers" for kernel in program.kernels for buffer in kernel.constants)


def stored(value: Any, *, repeated: int = 40) -> KernelCall:
    """Return a call of a kernel that stores ``value(x)`` for each of its elements; `repeated` sets the body's size."""
    x, output, i = Buffer("x", (4,), "int32"), Buffer("output", (4,), "int32"), ir.Var("i")
    terms = tb.load(x, [i])
    for _ in range(repeated):
        terms = tb.binary("max", terms, tb.load(x, [i]))
    body = ir.For(i, tb.const(4), ir.Store(output, (i,), value(terms)))
    result = Value("output", (4,), "int32", "output")
    return KernelCall(PrimFunc("k", (x,), (), output, (), body), (Value("x", (4,), "int32", "input"),), (), result, ())


def shared_calls(*values: Any, repeated: int = 40) -> list[KernelCall]:
    calls = [stored(value, repeated=repeated) for value in values]
    made = share_kernels(calls, lambda name, data: Value(name, data.shape, str(data.dtype), "constant", data))
    return [made.get(call, call) for call in calls]


def test_numbers_that_go_along_are_stored_once_and_limits_widen() -> None:
    def value(number: int, limit: int) -> Any:
        return lambda x: tb.intrinsic("within", x, tb.const(limit)) * number + number

    first, second = shared_calls(value(3, 100), value(-5, 9))
    assert first.kernel is second.kernel
    assert [call.constants[0].array.tolist() for call in (first, second)] == [[3], [-5]]
    exprs = [expr for stmt in visitor.walk(first.kernel.body) for expr in visitor.own_exprs(stmt)]
    calls = [node for expr in exprs for node in visitor.walk_expr(expr) if isinstance(node, ir.Call)]
    assert [call.args[1] for call in calls if isinstance(call.args[0], ir.Binary)] != []
    assert {int(arg.value) for call in calls for arg in call.args if isinstance(arg, ir.Const)} == {5, 100}
    data = np.array([-9, 0, 7, 9], np.int32)
    for call, number in ((first, 3), (second, -5)):
        found = run(call.kernel, [data], [call.constants[0].array])
        np.testing.assert_array_equal(found, data * number + number)


@pytest.mark.parametrize(
    "values",
    [
        (lambda x: x // 3, lambda x: x // 5),  # a divisor must be proven nonzero
        (lambda x: tb.binary("shr", x, tb.const(3)), lambda x: tb.binary("shr", x, tb.const(4))),
        (lambda x: x + 3, lambda x: x * 3),
    ],
    ids=["divisor", "shift", "operator"],
)
def test_what_is_no_number_of_a_value_stays(values: tuple[Any, Any]) -> None:
    first, second = shared_calls(*values)
    assert first.kernel is not second.kernel
    assert first.constants == second.constants == ()


def test_little_code_is_not_worth_numbers() -> None:
    first, second = shared_calls(lambda x: x + 3, lambda x: x + 4, repeated=1)
    assert first.kernel is not second.kernel
