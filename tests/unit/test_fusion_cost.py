"""Chains of operators that use their argument twice produce short code in any fusion."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.relay import ir
from mlfc.transform.fuse import inline_cost
from tests.counting import counted_calls
from tests.harness import compiled, module_of
from tests.relay_run import run_main

LENGTH = 12
SHAPE = (6, 9)


def leaky(x: ir.Expr) -> ir.Call:
    return ir.call("nn.leaky_relu", [x], alpha=0.9)


def mish(x: ir.Expr) -> ir.Call:
    softplus = ir.call("log", [ir.call("add", [ir.call("exp", [x]), ir.const(1.0)])])
    return ir.call("multiply", [x, ir.call("tanh", [softplus])])


def doubled(x: ir.Expr) -> ir.Call:
    return ir.call("add", [x, x])


def mirrored(x: ir.Expr) -> ir.Call:
    return ir.call("nn.mirror_pad", [x], pad_width=((1, 1), (1, 1)), mode="REFLECT")


READERS: dict[str, Callable[[ir.Expr], ir.Call]] = {
    "transpose": lambda x: ir.call("transpose", [x], axes=(1, 0)),
    "pad": lambda x: ir.call("nn.pad", [x, ir.const(0.0)], pad_width=((1, 1), (2, 2))),
    "softmax": lambda x: ir.call("nn.softmax", [x]),
    "concatenate": lambda x: ir.call("concatenate", [ir.Tuple((x, ir.call("negative", [x])))], axis=1),
    "argmax": lambda x: ir.call("argmax", [x], axis=(0,)),
}


def test_an_interpolation_is_not_computed_anew_for_each_sample_of_the_next() -> None:
    source = ir.Var("x", ir.TensorType((1, 5, 5, 4), "uint8"))
    inner = ir.call("qnn.resize_bilinear", [source], size=(9, 9))
    module = ir.IRModule({"main": ir.Function((source,), ir.call("qnn.resize_bilinear", [inner], size=(40, 40)))})
    text = mlfc.build(module).lib.get_source()
    assert text.count("int32_t tvmgen_default_fused_qnn_resize_bilinear") == 2
    assert "resize_bilinear_qnn_resize_bilinear" not in text
    module = ir.IRModule({"main": ir.Function((source,), ir.call("argmax", [inner], axis=(3,)))})
    assert "resize_bilinear_argmax" not in mlfc.build(module).lib.get_source()


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("step", [leaky, mish, doubled, mirrored])
def test_code_grows_with_the_chain_not_by_powers_of_two(step: Callable[[ir.Expr], ir.Call], reader: str) -> None:
    source = ir.Var("x", ir.TensorType(SHAPE, "float32"))
    chain: ir.Expr = source
    for _ in range(LENGTH):
        chain = step(chain)
    module = ir.IRModule({"main": ir.Function((source,), READERS[reader](chain))})
    with counted_calls() as calls:
        factory = mlfc.build(module)
    assert calls.number < 5_000_000
    text = factory.lib.get_source()
    assert len(text) < 100_000
    assert len(factory.program.kernels) <= LENGTH


def test_compiled_chains_compute_the_same_as_the_operators_one_by_one(tmp_path: Path) -> None:
    values = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}

    def build(variables: dict[str, ir.Var]) -> ir.Expr:
        chain: ir.Expr = variables["x"]
        for _ in range(6):
            chain = READERS["transpose"](leaky(mirrored(chain)))
        return chain

    module = module_of(values, {"y": build})
    np.testing.assert_array_equal(compiled(module, {}, tmp_path).run(values)["y"], run_main(module, values)[0])


def test_rules_are_counted_by_what_they_name() -> None:
    x = ir.Var("x", ir.TensorType(SHAPE, "float32"))
    assert inline_cost(doubled(x)).names == {x: 2}
    assert inline_cost(leaky(x)).names == {x: 3}
    assert inline_cost(READERS["transpose"](x)).index_growth == 1
    assert inline_cost(mirrored(x)).index_growth > 2
