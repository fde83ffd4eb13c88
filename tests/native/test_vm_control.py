"""Branches, loops, lists and dynamic dimensions, compiled to bytecode and run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfc.archive.read.load import load_factory
from mlfc.compiler import build
from mlfc.errors import InputError, MlfcError, UnsupportedError
from mlfc.relay import ir
from mlfc.relay.ir import Function, FuncType, GlobalVar, IRModule, Tuple, Var
from tests import vm_control

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
RANDOM = np.random.default_rng(14)


def _random(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


CASES = {
    "counting": (vm_control.counting(), vm_control.counting_means, [
        {"count": np.int64(turns), "x": _random(2, 3)} for turns in (0, 1, 5)]),
    "swapping": (vm_control.swapping(), vm_control.swapping_means, [
        {"count": np.int64(turns)} for turns in (0, 1, 50)]),
    "growing": (vm_control.growing(64), vm_control.growing_means, [
        {"count": np.int64(turns), "x": _random(rows, 2)} for turns, rows in ((0, 1), (1, 3), (4, 4))]),
    "growing without bounds": (vm_control.growing((1 << 31) - 1), vm_control.growing_means, [
        {"count": np.int64(turns), "x": _random(rows, 2)} for turns, rows in ((0, 1), (6, 3))]),
    "branching": (vm_control.branching(), vm_control.branching_means, [
        {"flag": np.bool_(flag), "x": _random(rows, 4)} for flag, rows in ((False, 1), (True, 7), (False, 50))]),
    "choosing": (vm_control.choosing(), vm_control.choosing_means, [
        {"wanted": np.int64(wanted), "x": _random(rows, 3)} for wanted, rows in ((0, 1), (7, 60), (60, 2))]),
    "picking": (vm_control.picking(), vm_control.picking_means, [
        {"wanted": np.int64(wanted), "x": _random(5)} for wanted in (0, 1, 3)]),
    "collecting": (vm_control.collecting(), vm_control.collecting_means, [
        {"count": np.int64(count), "x": _random(2, 2)} for count in (0, 1, 9)]),
    "trading": (vm_control.trading(), vm_control.trading_means, [
        {"count": np.int64(count), "x": _random(2)} for count in (0, 1, 2)]),
}  # fmt: skip


@pytest.mark.parametrize("target", ["llvm", "c"])
@pytest.mark.parametrize("name", CASES)
def test_models_do_what_they_say(name: str, target: str) -> None:
    mod, meaning, inputs = CASES[name]
    model = load_factory(build(mod, target, {}, module_name="vm_model"))
    for given in inputs:
        found = model.run(given)
        for result, wanted in zip(found.values(), meaning(given), strict=True):
            assert result.shape == np.shape(wanted)
            np.testing.assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)


def test_bounded_models_have_one_arena_and_others_none() -> None:
    arenas = {
        name: build(mod, "llvm", {}, dry_run=True).unit.executable.is_bounded  # type: ignore[union-attr]  # of vm
        for name, (mod, _, _) in CASES.items()
    }
    unbounded = [name for name, bounded in arenas.items() if not bounded]
    assert unbounded == ["growing without bounds", "collecting", "trading"]


def test_inputs_outside_the_bounds_are_refused() -> None:
    model = load_factory(build(vm_control.branching(), "llvm", {}))
    for rows in (0, 51):
        with pytest.raises(InputError, match="1 to 50"):
            model.run({"flag": np.bool_(True), "x": _random(rows, 4)})
    grown = load_factory(build(vm_control.growing(64), "llvm", {}))
    with pytest.raises(MlfcError, match="rows"):
        grown.run({"count": np.int64(5), "x": _random(4, 2)})


def test_code_for_certain_extents_gives_the_same_bits() -> None:
    mod = vm_control.branching()
    general = load_factory(build(mod, "llvm", {}))
    factory = build(mod, "llvm", {}, specialize=[{"rows": 8}, {"rows": 1}])
    special = load_factory(factory)
    assert len(factory.program.kernels) > len(build(mod, "llvm", {}, dry_run=True).program.kernels)
    for rows in (1, 8, 9):
        given = {"flag": np.bool_(rows == 8), "x": _random(rows, 4)}
        for one, other in zip(general.run(given).values(), special.run(given).values(), strict=True):
            assert one.tobytes() == other.tobytes()
    for values, message in (({"row": 1}, "nearest: 'rows'"), ({"rows": 99}, "expected 1 to 50")):
        with pytest.raises(MlfcError, match=message):
            build(mod, "llvm", {}, specialize=[values], dry_run=True)


def test_recursion_that_is_no_loop_is_refused() -> None:
    kind = FuncType((vm_control.INTEGER,), vm_control.INTEGER)
    itself = GlobalVar("itself", kind)
    x = Var("x", vm_control.INTEGER)
    body = ir.call("add", [ir.call_function(itself, [x]), vm_control.one(1)])
    main = Function((x,), Tuple((ir.call_function(itself, [x]),)))
    mod = IRModule({"main": main, "itself": Function((x,), body)}, ("y",))
    with pytest.raises(UnsupportedError, match="calls itself"):
        build(mod, "llvm", {}, executor="vm")
