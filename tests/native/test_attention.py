"""Attention by tiles of keys: results against the definition in float64, memory, and skipped tiles."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import mlfc
from mlfc.errors import TypeCheckError
from mlfc.relay import ir
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir import interpreter
from mlfc.tir.interpreter import evaluate_expr
from mlfc.tir.ir import PrimFunc, Var
from mlfc.transform.lower_group import lower_group
from tests.attention_reference import attention
from tests.harness import loaded_by_llvm
from tests.verify_tir import verify

Array = npt.NDArray[Any]
RNG = np.random.default_rng(31)


def reals(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass
class Case:
    """Sizes (batch, heads, groups, queries, keys, size, size of values), attributes, and further arguments."""

    sizes: tuple[int, int, int, int, int, int, int]
    attrs: dict[str, Any] = field(default_factory=dict)
    extras: list[tuple[str, Array]] = field(default_factory=list)
    args: list[Array] = field(init=False)

    def __post_init__(self) -> None:
        batch, heads, groups, queries, keys, size, value_size = self.sizes
        shapes = (batch, heads, queries, size), (batch, groups, keys, size), (batch, groups, keys, value_size)
        self.args = [*(reals(*shape) for shape in shapes), *(extra for _, extra in self.extras)]
        for index, order in enumerate(self.attrs.get("orders", ())[:3]):
            self.args[index] = self.args[index].transpose(["BHND".index(letter) for letter in order])
        self.attrs = {"scale": size**-0.5, "extras": tuple(name for name, _ in self.extras), **self.attrs}

    def expected(self) -> Array:
        orders = self.attrs.get("orders", ("BHND",) * 4)
        parts = [
            arg.transpose([order.index(letter) for letter in "BHND"])
            for arg, order in zip(self.args[:3], orders[:3], strict=True)
        ]
        return attention([*parts, *self.args[3:]], self.attrs).transpose(["BHND".index(letter) for letter in orders[3]])


def integers(*values: int) -> Array:
    return np.array(values, np.int32)


def hiding(*shape: int) -> Array:
    """Return a mask that hides all keys of some queries."""
    mask: Array = RNG.random(shape) < 0.4
    mask.reshape(-1)[: 2 * shape[-1]] = False
    return mask


def undefined(case: Case) -> Case:
    """Return a case with NaN in the first query of each head."""
    case.args[0][:, :, 0, 1] = np.nan
    return case


CASES = {
    "queries that fill no vector, keys that fill no tile": Case((2, 4, 2, 33, 70, 5, 7)),
    "one tile, more panels than a block": Case((1, 1, 1, 90, 30, 4, 3)),
    "causal": Case((1, 2, 1, 40, 40, 8, 8), {"right": 0}),
    "window, behind others": Case((1, 1, 1, 40, 150, 8, 8), {"right": 2, "left": 10, "offset": 60}),
    "before the first key": Case((1, 1, 1, 20, 9, 4, 4), {"right": 0, "offset": -5}),
    "positions and lengths of each row": Case(
        (3, 2, 2, 12, 140, 4, 4), {"right": 0, "left": 90},
        [("offset", integers(3, 100, -2_000_000_000)), ("lengths", integers(140, 71, 2_000_000_000))],
    ),
    "cap, masks, biases and sinks": Case(
        (1, 4, 2, 9, 67, 4, 4), {"softcap": 0.7},
        [("mask", hiding(1, 1, 9, 67)), ("bias", reals(1, 4, 1, 67)), ("bias", reals(1, 1, 9, 1)), ("sink", reals(4))],
    ),
    "rows without keys": Case((1, 2, 2, 9, 20, 4, 4), {}, [("mask", hiding(1, 2, 9, 20))]),
    "rows without keys by infinities": Case(
        (1, 2, 2, 9, 20, 4, 4), {"zero_rows": False},
        [("bias", np.where(hiding(1, 2, 9, 20), np.float32(0), np.float32(-np.inf)))],
    ),
    "NaN in rows without keys": undefined(Case((1, 2, 2, 9, 20, 4, 4), {"right": 12}, [("mask", hiding(1, 2, 9, 20))])),
    "NaN in few rows without keys by infinities": undefined(Case(
        (1, 2, 2, 2, 20, 16, 16), {}, [("bias", np.where(hiding(1, 2, 2, 20), np.float32(0), np.float32(-np.inf)))],
    )),
    "few queries": Case((2, 6, 2, 1, 133, 37, 20)),
    "few queries of groups that do not divide": Case((1, 5, 1, 1, 131, 16, 48), {"left": 20, "offset": 129}),
    "few queries, masks": Case(
        (2, 4, 2, 2, 140, 16, 16), {"right": 0},
        [("offset", integers(1, 138)), ("lengths", integers(0, 139)), ("mask", hiding(1, 4, 2, 140)),
         ("bias", reals(2, 1, 1, 140)), ("sink", reals(4))],
    ),
    "heads inside": Case((2, 2, 1, 20, 30, 4, 4), {"right": 0, "orders": ("BNHD",) * 4}),
    "heads inside, few queries": Case((2, 2, 1, 2, 30, 16, 16), {"orders": ("BNHD", "BHND", "BNHD", "NBHD")}),
    "positions first": Case((2, 2, 2, 9, 9, 4, 4), {"orders": ("NBHD", "NBHD", "BHND", "NBHD")}),
    "what masks hide gets a score": Case(
        (1, 2, 2, 9, 20, 4, 4), {"fill": -3.0, "softcap": 2.0},
        [("mask", hiding(1, 2, 9, 20)), ("bias", reals(1, 2, 1, 20)), ("lengths", integers(17))],
    ),
    "few small ones": Case((1, 2, 1, 1, 1, 3, 2)),
}  # fmt: skip


@pytest.fixture(scope="module")
def merged() -> tuple[ir.IRModule, dict[str, Array]]:
    """Return a module with all cases, in the order of the table, and its inputs."""
    inputs, outputs = {}, []
    for number, case in enumerate(CASES.values()):
        given = {f"c{number}_{index}": arg for index, arg in enumerate(case.args)}
        inputs |= given
        kinds = [ir.Var(name, ir.TensorType(arg.shape, str(arg.dtype))) for name, arg in given.items()]
        outputs.append((kinds, ir.call("nn.attention", kinds, case.attrs)))
    params = tuple(var for kinds, _ in outputs for var in kinds)
    main = ir.Function(params, ir.Tuple(tuple(call for _, call in outputs)))
    return ir.IRModule({"main": main}, tuple(f"y{number}" for number in range(len(outputs)))), inputs


def agree(found: list[Array]) -> None:
    for (name, case), ours in zip(CASES.items(), found, strict=True):
        np.testing.assert_allclose(ours, case.expected(), rtol=1e-6, atol=1e-6, err_msg=name)


def test_vectors_give_what_the_definition_says(merged: Any, quick_builds: None) -> None:
    with np.errstate(all="ignore"):
        agree(list(loaded_by_llvm(merged[0], {}).run(merged[1]).values()))


def test_scalars_give_what_the_definition_says(merged: Any, quick_builds: None, tmp_path: Path) -> None:
    factory = mlfc.build(merged[0], "c -mcpu=cortex-m3", module_name="plain")
    loaded = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / "plain.tar"))
    agree(list(loaded.run(merged[1]).values()))


def kernel(case: Case, features: Features = Features()) -> PrimFunc:  # noqa: B008  (it is immutable)
    params = tuple(ir.Var(f"x{i}", ir.TensorType(arg.shape, str(arg.dtype))) for i, arg in enumerate(case.args))
    function = ir.Function(params, ir.call("nn.attention", params, case.attrs), {"Primitive": 1})
    prim = lower_group(function, features).prim
    verify(prim)
    return prim


@pytest.mark.parametrize("registers", [16, 32])
@pytest.mark.parametrize("heads", [2, 8])
def test_memory_does_not_grow_with_the_scores(heads: int, registers: int) -> None:
    def scratch(queries: int, keys: int) -> int:
        module = kernel(Case((1, heads, 2, queries, keys, 64, 64)), Features(vector_registers=registers))
        return module.scratch_bytes

    lanes = 16 if registers == 16 else 64
    tile, panel = 72 * lanes * 4, 4 * (64 + 64 + 2) * lanes * 4
    assert scratch(4096, 4096) == scratch(512, 512) <= tile + panel
    assert scratch(1, 4096) == scratch(1, 512) <= 4 * (128 + 64) * 4


def test_scalars_keep_one_row() -> None:
    plain = Features(vector_bytes=0, dot4=False)
    assert kernel(Case((1, 8, 2, 64, 64, 16, 16)), plain).scratch_bytes <= (32 + 16) * 4 + 64


def test_the_plan_has_no_scores() -> None:
    shape = (1, 12, 256, 64)
    q, k, v = (ir.Var(name, ir.TensorType(shape, "float32")) for name in "qkv")
    body = ir.call("nn.attention", [q, k, v], scale=0.125)
    factory = mlfc.build(ir.IRModule({"main": ir.Function((q, k, v), body)}), "c", dry_run=True)
    assert factory.plan.size < 40_000 < 12 * 256 * 256 * 4


def steps(case: Case) -> int:
    """Return the number of statements that the kernel executes."""
    prim = kernel(case, Features(vector_bytes=0, dot4=False))
    _, count = interpreter.run_counted(prim, case.args, [], step_limit=10**9)
    return count


def test_tiles_that_no_query_sees_are_left_out() -> None:
    sizes = (1, 1, 1, 2, 128, 2, 2)
    whole = steps(Case(sizes))
    assert steps(Case(sizes, {"right": 0, "offset": 30})) < 0.3 * whole
    assert steps(Case(sizes, {"left": 3, "right": 0, "offset": 126})) < 0.1 * whole
    assert steps(Case(sizes, {}, [("lengths", integers(32))])) < 0.3 * whole


def test_keys_behind_the_last_are_not_read(quick_builds: None) -> None:
    """Put NaN behind the last key: if it were read, even a weight of zero would make the result NaN."""
    outputs, inputs = {}, {}
    for queries in (1, 20):
        case = Case((1, 2, 1, queries, 150, 16, 16), {}, [("lengths", integers(69))])
        for part in case.args[1:3]:
            part[:, :, 69:] = np.nan
        inputs |= {f"x{queries}_{index}": arg for index, arg in enumerate(case.args)}
        outputs[queries] = case
    variables = {name: ir.Var(name, ir.TensorType(value.shape, str(value.dtype))) for name, value in inputs.items()}
    calls = [
        ir.call("nn.attention", [variables[f"x{queries}_{index}"] for index in range(4)], case.attrs)
        for queries, case in outputs.items()
    ]
    module = ir.IRModule({"main": ir.Function(tuple(variables.values()), ir.Tuple(tuple(calls)))})
    for found, case in zip(loaded_by_llvm(module, {}).run(inputs).values(), outputs.values(), strict=True):
        cut = [case.args[0], *(part[:, :, :69] for part in case.args[1:3])]
        np.testing.assert_allclose(found, attention(cut, {"scale": 0.25}), rtol=1e-5, atol=1e-6)


def test_exponentials_of_scores_are_exact_to_the_last_place_and_vanish() -> None:
    x = np.concatenate([np.linspace(-90, 0, 20_001), [-0.0, -1e-30, -87.33654, -104, -1e30, -np.inf]])
    x = x.astype(np.float32)
    var = Var("x", "float32")
    with np.errstate(all="ignore"):
        found = evaluate_expr(tb.intrinsic("exp_below_f32", var), {var: x}, {})
        assert np.isnan(evaluate_expr(tb.intrinsic("exp_below_f32", var), {var: np.float32([np.nan])}, {})).all()
    wanted = np.exp(x.astype(np.float64))
    normal = x >= -87.336
    assert np.all(np.abs(found - wanted)[normal] <= 1.1 * np.spacing(found)[normal])
    assert not np.any(found[x < -87.337])
    assert np.all(np.abs(found - wanted) < 2e-38 + 1e-6 * wanted)


@pytest.mark.parametrize(
    ("attrs", "extras", "message"),
    [
        ({"orders": ("BHND",) * 3}, (), "expected the orders of query, key, value and result"),
        ({"orders": ("BHND", "BHND", "BHND", "HBND")}, (), "expected an order BHND, BNHD, NBHD, got 'HBND'"),
        ({"extras": ("bias",)}, (), "expected query, key, value and extras: bias"),
        ({"extras": ("size",)}, (), "expected an extra argument mask, bias"),
        ({"extras": ("sink", "sink")}, (), "'sink' is given more than once"),
        ({"left": -2}, (), "expected left from -1 to 536870912, got -2"),
        ({"offset": 1 << 40}, (), "expected an offset within 536870912"),
        ({"softcap": -1.0}, (), "expected a softcap of 0 or more"),
        ({"extras": ("mask",)}, (reals(1, 1, 1, 5),), "takes bool tensors, not float32"),
        ({"extras": ("bias",)}, (reals(1, 1, 2, 5),), "a bias of shape (1, 1, 2, 5) does not fit scores of shape"),
        ({"extras": ("lengths",)}, (integers(1, 2),), "expected lengths of shape (1,), got (2,)"),
        ({"extras": ("lengths",)}, (reals(1),), "expected lengths of int32, got float32"),
    ],
)
def test_what_does_not_fit_is_refused(attrs: dict[str, Any], extras: tuple[Array, ...], message: str) -> None:
    shapes = [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 4)]
    parts = [ir.Var("x", ir.TensorType(shape, "float32")) for shape in shapes]
    with pytest.raises(TypeCheckError) as caught:
        ir.call("nn.attention", [*parts, *map(ir.const, extras)], {"scale": 1.0, **attrs})
    assert message in str(caught.value)
