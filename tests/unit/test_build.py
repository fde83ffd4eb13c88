"""What `mlforge.build` returns."""

from __future__ import annotations

import mlforge
from mlforge import ops  # noqa: F401  (registers the operators)
from mlforge.relay import ir

DOUBLINGS = 100


def test_models_whose_nodes_are_shared_are_shown_at_once() -> None:
    x = ir.Var("x", ir.TensorType((4,), "float32"))
    body: ir.Expr = x
    for _ in range(DOUBLINGS):  # spelled out it would be 2**100 nodes
        body = ir.call("add", [body, body])
    module = ir.IRModule({"main": ir.Function((x,), body)})
    factory = mlforge.build(module, module_name="double")
    assert repr(factory) == "<Factory double: c, aot>"
    for shown in (module, module.main, module.main.body, factory.program):
        assert len(repr(shown)) < 100
