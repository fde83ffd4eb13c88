"""The calls that external generators get: patterns, convexity, merging."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from mlfc.byoc import GENERATORS, Composite, Generator, Subgraph, find_generators
from mlfc.byoc.generator import generated, subgraph_of
from mlfc.byoc.pattern import Pattern, anything, constant, maybe, op
from mlfc.errors import OptionError
from mlfc.relay import ir
from mlfc.relay.ir import Call, Expr, Function, IRModule, TensorType, Var
from mlfc.relay.visitor import post_order
from mlfc.target.features import Features
from mlfc.tir.ir import Buffer, External
from mlfc.transform import PartitionGraph
from tests.verify_relay import verify

X = Var("x", TensorType((2, 3), "float32"))


def generator(*patterns: Pattern, merges: bool = False) -> Generator:
    table = tuple(Composite(f"part{index}", pattern) for index, pattern in enumerate(patterns))
    return Generator("test", table, lambda _: External("test"), merges=merges)


def parts(body: Expr, entry: Generator) -> list[list[str]]:
    """Return the operators of each part, in order, and verify the partitioned module."""
    module = PartitionGraph((entry,))(IRModule({"main": Function((X,), body)}))
    verify(module)
    found = []
    for expr in post_order(module.main.body):
        if isinstance(expr, Call) and isinstance(expr.op, Function):
            assert expr.op.attrs["Compiler"] == "test"
            found.append([ir.op_name(call) or "" for call in post_order(expr.op.body) if isinstance(call, Call)])
    return found


def relu(x: Expr) -> Call:
    return ir.call("nn.relu", [x])


def tanh(x: Expr) -> Call:
    return ir.call("tanh", [x])


def add(x: Expr, y: Expr) -> Call:
    return ir.call("add", [x, y])


ONE = ir.const(np.ones((2, 3), np.float32))


def test_a_chain_is_one_part() -> None:
    pattern = op("tanh", op("nn.relu", anything()))
    assert parts(tanh(relu(X)), generator(pattern)) == [["nn.relu", "tanh"]]


def test_a_part_whose_inside_others_read_is_left_alone() -> None:
    inner = relu(X)
    pattern = op("tanh", op("nn.relu", anything()))
    assert parts(add(tanh(inner), inner), generator(pattern)) == []


def test_a_part_whose_inside_is_an_output_is_left_alone() -> None:
    inner = relu(X)
    pattern = op("tanh", op("nn.relu", anything()))
    assert parts(ir.Tuple((tanh(inner), inner)), generator(pattern)) == []


@pytest.mark.parametrize("behind", [True, False])
def test_what_may_stand_behind_goes_along(behind: bool) -> None:
    body = tanh(relu(X)) if behind else relu(X)
    assert parts(body, generator(maybe("tanh", op("nn.relu")))) == [["nn.relu", "tanh"] if behind else ["nn.relu"]]


def test_constants_are_told_from_other_operands() -> None:
    pattern = op("add", anything(), constant())
    assert parts(add(add(X, X), ONE), generator(pattern)) == [["add"]]
    assert parts(add(X, X), generator(pattern)) == []


def test_the_first_entry_that_matches_counts() -> None:
    long, short = op("tanh", op("nn.relu")), op(("tanh", "nn.relu"))
    assert parts(tanh(relu(X)), generator(long, short)) == [["nn.relu", "tanh"]]
    assert parts(tanh(relu(X)), generator(short, long)) == [["nn.relu"], ["tanh"]]


def test_neighbours_merge_where_one_alone_reads_the_other() -> None:
    every = generator(op(("tanh", "nn.relu", "add")), merges=True)
    inner = relu(X)
    assert parts(add(tanh(inner), inner), every) == [["nn.relu", "tanh", "add"]]
    inner = relu(X)
    # the sum also reads a value computed in between, so merging would create a cycle
    between = ir.call("exp", [inner])
    assert parts(add(tanh(inner), between), every) == [["nn.relu"], ["tanh", "add"]]


def test_merged_parts_have_the_order_of_the_graph() -> None:
    rng = np.random.default_rng(3)
    every = generator(op(("tanh", "nn.relu", "add")), merges=True)
    for _ in range(50):
        values: list[Expr] = [X]
        for _ in range(12):
            values.append(_random_call(rng, values))
        names = parts(ir.Tuple(tuple(values[-2:])), every)
        assert sum(map(len, names)) == len([1 for expr in post_order(ir.Tuple(tuple(values[-2:]))) if _taken(expr)])


def _taken(expr: Expr) -> bool:
    return isinstance(expr, Call) and ir.op_name(expr) != "exp"


def _random_call(rng: np.random.Generator, values: Sequence[Expr]) -> Call:
    def pick() -> Expr:
        return values[int(rng.integers(max(0, len(values) - 4), len(values)))]

    kind = int(rng.integers(4))
    return [lambda: relu(pick()), lambda: tanh(pick()), lambda: add(pick(), pick()), lambda: ir.call("exp", [pick()])][
        kind
    ]()


def test_generators_are_found_by_name() -> None:
    assert [entry.name for entry in find_generators(["cmsis_nn"])] == ["cmsis_nn", "onnxruntime"]
    assert [entry.name for entry in find_generators([])] == ["onnxruntime"]
    with pytest.raises(OptionError, match="cmsis_nn"):
        find_generators(["cmsis-nn"])
    with pytest.raises(OptionError, match="twice"):
        find_generators(["cmsis_nn", "cmsis_nn"])
    with pytest.raises(OptionError, match="known: 'cmsis_nn', 'onnxruntime'"):
        find_generators(["vela"])
    with pytest.raises(OptionError, match=r"Pass \['cmsis_nn'\]"):
        find_generators("cmsis_nn")


@pytest.mark.parametrize(
    ("key", "name", "cause"),
    [
        ("cmsis_nn", "cmsis_nn", "generator 'cmsis_nn' is already registered"),
        ("one", "other", "'other' is added as 'one'"),
        ("../up", "../up", "cannot have the name"),
        ("a,b", "a,b", "cannot have the name"),
        ("host", "host", "cannot have the name"),
    ],
)
def test_generators_of_no_use_are_not_added(key: str, name: str, cause: str) -> None:
    with pytest.raises(OptionError, match=cause):
        GENERATORS.add(key, Generator(name, (), lambda _: External(name)))
    assert set(GENERATORS) == {"cmsis_nn", "onnxruntime"}


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (None, "returned NoneType, not External"),
        (External("other", "return 0;"), "returned code of 'other'"),
        (External("test"), "neither statements nor a runtime module"),
        (External("test", module=b"x"), "has no module_bytes"),
        (
            External("test", "${outputs}[0] = 1;"),
            "unknown buffer or number 'outputs' .*known: input0, output, one, tmp",
        ),
        (External("test", "/* $1 */"), "dollar sign"),
    ],
)
def test_what_is_no_code_is_a_fault_of_the_generator(code: External, cause: str) -> None:
    def generate(part: Subgraph) -> External:
        part.constant("one", np.ones(1, np.float32))
        part.scratch("tmp", 4)
        return code

    entry = Generator("test", (Composite("relu", op("nn.relu")),), generate)
    module = PartitionGraph((entry,))(IRModule({"main": Function((X,), relu(X))}))
    (function,) = [item.op for item in post_order(module.main.body) if isinstance(item, Call)]
    assert isinstance(function, Function)
    with pytest.raises(OptionError, match=f"'test' .*{cause}"):
        generated(entry, subgraph_of(function, Features()))


@pytest.mark.parametrize("name", ["input0", "output", "one", "a b", "", "1st"])
def test_buffers_have_names_of_their_own(name: str) -> None:
    buffer = Buffer("output", (1,), "float32")
    part = Subgraph("part", Function((X,), X), Features(), (Buffer("input0", (1,), "float32"),), buffer)
    part.constant("one", np.ones(1, np.float32))
    with pytest.raises(OptionError, match=f"cannot have the name '{name}'"):
        part.scratch(name, 4)
    with pytest.raises(OptionError, match=f"cannot have the name '{name}'"):
        part.constant(name, np.ones(1, np.float32))
