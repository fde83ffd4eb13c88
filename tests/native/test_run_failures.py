"""All failures of runs of dynamic models: code, values and message, in C and by LLVM."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from onnx import parser

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import DeviceError, InputError, LimitError, MlfcError, RunError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.relay.ir import Function, IRModule, Tuple, Var
from mlfc.runtime.executors.vm.native import aligned_zeros
from mlfc.support.dims import Dim, Symbol
from mlfc.support.executable import RunCode as Code
from tests import vm_control
from tests.vm_calls import Array, Caller

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
MOST = (1 << 31) - 1


def graph(text: str) -> Callable[..., Factory]:
    """Return a function that compiles an ONNX graph."""

    def compiled(target: str, **options: Any) -> Factory:
        model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> failing {text}')
        factory: Factory = mlfc.compile(model.SerializeToString(), target, module_name="failing", **options).factory
        return factory

    return compiled


def built(module: IRModule) -> Callable[[str], Factory]:
    return lambda target: mlfc.build(module, target, {}, module_name="failing", executor="vm")


def doubled() -> IRModule:
    n = Symbol("n", 1, 9)
    x = Var("x", vm_control.floats(n.dim, n.dim * 2, 3))
    return IRModule({"main": Function((x,), Tuple((ir.call("tanh", [ir.call("negative", [x])]),)))}, ("y",))


def of_values(extent: Callable[[Dim, Dim], Any]) -> IRModule:
    """Return a model of zeros whose number depends on two input values."""
    a, b = Symbol("a", 0, 100), Symbol("b", 0, 100)
    values = Var("a", vm_control.INTEGER), Var("b", vm_control.INTEGER)
    zeros = ir.call("zeros", [], shape=(extent(a.dim, b.dim),), dtype="float32")
    return IRModule({"main": Function(values, Tuple((zeros, *values)), {"defines": (a, b)})}, ("y",))


def keeping(target: str) -> Factory:
    text = "(float[n,3] x, float[1,3] h) => (float[n,3] y, float[1,3] after) { y = Add (x, h) after = Neg (h) }"
    return graph(text)(target, states={"h": "after"})


def of_device(target: str) -> Factory:
    text = "(float[n,64,64] x) => (float[n,64,64] y) { y = Tanh (x) }"
    return graph(text)("opencl", target_host=target)


def of_runtime(target: str) -> Factory:
    text = (
        "(float[n,3,8,8] x) => (float[1,3,1,1] y) <float[1,5] boxes = {0, 0, 0, 7, 7}>"
        "{ a = Neg (x) y = MaxRoiPool <pooled_shape = [1, 1]> (a, boxes) }"
    )
    return graph(text)(target, byoc=["onnxruntime"])


MODELS: dict[str, Callable[[str], Factory]] = {
    "doubled": built(doubled()),
    "difference": built(of_values(lambda a, b: a - b)),
    "quotient": built(of_values(lambda a, b: a // b)),
    "filled": graph("(int64[3] s) => (float[a,b,c] y) { y = ConstantOfShape (s) }"),
    "negated": graph("(float[n,m] x) => (float[n,m] y) { y = Neg (x) }"),
    "tiled": graph("(float[n] x) => (float[m] y) <int64[1] e = {1000000}> { y = Tile (x, e) }"),
    "cast": graph("(uint64[1] a, float[1] x) => (float[m] y) { b = Cast <to = 7> (a) y = Expand (x, b) }"),
    "picked": graph("(seq(float[a,2]) s, int64 i) => (float[b,2] y) { y = SequenceAt (s, i) }"),
    "joined": graph("(seq(float[a,2]) s) => (float[b,2] y) { y = ConcatFromSequence <axis = 0> (s) }"),
    "again": built(vm_control.counting()),
    "growing": built(vm_control.growing(MOST)),
    "collecting": built(vm_control.collecting()),
    "keeping": keeping,
    "of_device": of_device,
    "of_runtime": of_runtime,
}


@cache
def made(name: str, target: str) -> Factory:
    return MODELS[name](target)


@cache
def caller(name: str, target: str) -> Caller:
    return Caller(made(name, target))


def floats(*shape: int) -> Array:
    return np.ones(shape, np.float32)


def parts(*rows: tuple[int, int], nbytes: int = 64, index: int | None = None) -> list[Array]:
    """Return the parts of a sequence, and an index into it."""
    return [np.int64(rows).reshape(-1, 2), np.zeros(nbytes, np.uint8)] + ([] if index is None else [np.int64(index)])


FITTING = floats(2, 4, 3)
CASES: list[tuple[str, list[Any], dict[str, Any], Code, tuple[int, ...], type[MlfcError], str]] = [
    ("keeping", [floats(1, 3)], {}, Code.STATE, (12,), RunError, "has 12 bytes of state, but got no memory"),
    ("doubled", [np.ones((2, 4, 3))], {}, Code.BAD_INPUT, (0, -1, 11), InputError, "x: .* dtype float32, got float64"),
    ("doubled", [floats(2, 4)], {}, Code.BAD_INPUT, (0, -2, 2), InputError, "x: expected input of 3 dimensions, got 2"),
    ("doubled", [FITTING], {"skew": 4}, Code.BAD_INPUT, (0, -3), InputError, "is not aligned to 64"),
    ("doubled", [floats(2, 4, 2)], {}, Code.BAD_INPUT, (0, 2, 2), InputError, "x: .* extent 3 on axis 2, got 2"),
    ("doubled", [floats(10, 20, 3)], {}, Code.BAD_INPUT, (0, 0, 10), InputError, r"'n' \(1 to 9, .* axis 0, got 10"),
    ("doubled", [floats(2, 5, 3)], {}, Code.EQUAL, (5, 4), InputError, "x, axis 1, a multiple of 2: .* 5 and 4"),
    ("doubled", [FITTING], {"work": 0}, Code.WORK, (2008,), RunError, "it must have 2,008 bytes"),
    ("doubled", [FITTING], {"work": 2007}, Code.WORK, (2008,), RunError, "the work area is too small"),
    ("doubled", [FITTING], {"memory_limit": 1943}, Code.MEMORY, (1944, 1943), LimitError, "for n up to 9: 1,944 "),
    ("doubled", [FITTING], {"targets": [floats(2, 4)]}, Code.BAD_OUTPUT, (0,), RunError, ""),
    ("difference", [np.int64(2), np.int64(3)], {}, Code.RANGE, (-1, 0, MOST), InputError, "expected 0 to .*, got -1"),
    ("difference", [np.int64(101), np.int64(3)], {}, Code.RANGE, (101, 0, 100), InputError, "a: expected 0 to 100"),
    ("quotient", [np.int64(2), np.int64(0)], {}, Code.DIVISION, (2,), RunError, "2 is divided by zero"),
    ("filled", [np.int64([MOST] * 3)], {}, Code.OVERFLOW, (MOST * MOST, 1 << 31), RunError, "does not fit in an"),
    ("negated", [np.ones((MOST - 9, 0), np.float32)], {}, Code.KERNEL, (-1,), RunError, "the kernel rejected"),
    ("filled", [np.int64([4, 4, 4])], {"memory_limit": 255}, Code.MEMORY, (256, 255), LimitError, "Raise memory_limit"),
    ("filled", [np.int64([4, 4, 4])], {"allocations": 1}, Code.ALLOCATE, (256,), RunError, "of memory for 256 bytes"),
    ("filled", [np.int64([4, 4, 4])], {"has_heap": False}, Code.WORK, (128,), RunError, "it must have 128 bytes"),
    ("filled", [np.int64([4, 4, 4])], {"has_heap": False, "work": 128}, Code.ALLOCATE, (256,), RunError, "of memory"),
    ("filled", [np.int64([9999, 9999, 1])], {}, Code.ALLOCATE, (399920004,), RunError, "of memory for 399,920,004"),
    ("tiled", [floats(1000000)], {}, Code.SIZE, (10**12,), RunError, "too large: .* is 1000000000000"),
    ("picked", parts((2, 2), index=1), {}, Code.INDEX, (1, 1), RunError, "into a list of 1 tensors, got 1"),
    ("picked", parts((2, 2), index=-2), {}, Code.INDEX, (-2, 1), RunError, "into a list of 1 tensors, got -2"),
    ("picked", parts((9, 2), index=0), {}, Code.ELEMENT, (72, 64), RunError, "72 bytes exceed the 64"),
    ("picked", parts((-1, 2), index=0), {}, Code.NEGATIVE, (-1,), RunError, "expected a non-negative size, got -1"),
    ("picked", parts((2, 3), index=0), {}, Code.EQUAL, (3, 2), InputError, "tensors of s: .* 3 and 2"),
    ("picked", parts((1 << 62, 2), index=0), {}, Code.SIZE, (1 << 62,), RunError, "too large"),
    ("joined", parts(), {}, Code.FAILED, (), RunError, "the sequence is empty: the model ended the run"),
    ("again", [np.int64(5), floats(2, 3)], {"turn_limit": 4}, Code.TURNS, (4,), LimitError, "exceeds 4 iterations"),
    ("of_runtime", [floats(2, 3, 8, 8)], {}, Code.PACKED, (-1,), RunError, "the packed function failed"),
    ("of_runtime", [floats(2, 3, 8, 8)], {"packed": lambda *_: 1}, Code.PACKED, (-1,), RunError, "the packed function"),
    ("of_device", [floats(2, 64, 64)], {}, Code.DEVICE, (4,), DeviceError, "requires a device of type 4"),
]  # fmt: skip


@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("case", CASES, ids=[f"{code.name}-{name}" for name, *_, code, _, _, _ in CASES])
def test_runs_fail_with_a_code_and_a_message(case: tuple[Any, ...], target: str) -> None:
    name, inputs, options, code, values, kind, message = case
    ended = caller(name, target).run(*inputs, **options)
    assert (ended.code, ended.values[: len(values)]) == (code, values)
    if message:
        with pytest.raises(kind, match=message):
            raise ended.error  # type: ignore[misc]  # there is one


def test_every_code_has_a_case() -> None:
    assert {case[3] for case in CASES} == set(Code)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_memory_is_freed_wherever_allocations_end(target: str) -> None:
    x = floats(2, 2)
    for name, inputs, least in (
        ("filled", [np.int64([4, 4, 4])], 2),
        ("joined", parts((3, 2), (2, 2), (3, 2), nbytes=192), 2),
        ("picked", parts((3, 2), (2, 2), nbytes=128, index=1), 1),
        ("growing", [np.int64(5), x], 5),
        ("collecting", [np.int64(9), x], 9),
    ):
        count = 0
        while (ended := caller(name, target).run(*inputs, allocations=count)).code is not None:
            assert ended.code == Code.ALLOCATE
            count += 1
        assert count >= least, name
        (first, *_), area = ended.outputs, ended.values[0]
        again = caller(name, target).run(*inputs, work=area)
        np.testing.assert_array_equal(again.outputs[0], first)
        # the work area saves one allocation if the run's code needs one
        assert caller(name, target).run(*inputs, work=area, allocations=count - (area > 0)).code is None


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_limits_of_memory_end_runs_that_grow(target: str) -> None:
    given, model = [np.int64(9), floats(2, 2)], caller("collecting", target)
    ends = {model.run(*given, memory_limit=limit).code for limit in range(64, 3000, 64)}
    assert ends == {Code.MEMORY, None}
    assert caller("again", target).run(np.int64(5), floats(2, 3), turn_limit=5).code is None


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_a_bounded_model_runs_in_its_work_area_alone(target: str) -> None:
    model = caller("doubled", target)
    assert model.run(FITTING, has_heap=False).outputs[0].shape == FITTING.shape
    into = np.zeros_like(FITTING)
    assert model.run(FITTING, has_heap=False, targets=[into]).code is None
    np.testing.assert_allclose(into, np.tanh(-FITTING), rtol=1e-6)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_states_are_kept_when_a_run_fails(target: str) -> None:
    model, state = caller("keeping", target), aligned_zeros(12).view(np.float32)
    state[:] = 7
    model.reset(state)
    assert not state.any()
    state[:] = 1, 2, 3
    x = floats(2, 3)
    count = 0
    while (ended := model.run(x, state=state, allocations=count)).code is not None:
        assert state.tolist() == [1, 2, 3]
        count += 1
    assert ended.outputs[0].tolist() == [[2, 3, 4]] * 2
    assert state.tolist() == [-1, -2, -3]


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_calls_from_python_raise_these_errors(target: str) -> None:
    model = load_factory(made("doubled", target))
    for name, inputs, options, _, _, kind, message in CASES:
        if name == "doubled" and not options:
            with pytest.raises(kind, match=message):
                model.run(*inputs)
    model.set_limits(memory_limit=100)
    with pytest.raises(LimitError, match=r"arena of module 'failing' for n up to 9: 1,944 bytes more exceed"):
        model.run(FITTING)
    again = load_factory(made("again", target))
    again.set_limits(turn_limit=4)
    with pytest.raises(LimitError, match="Raise turn_limit"):
        again.run(np.int64(5), floats(2, 3))
    joined = load_factory(made("joined", target))
    with pytest.raises(RunError, match="the sequence is empty"):
        joined.run([])
    for message, target_array in (
        ("int32", np.zeros((2, 4, 3), np.int32)),
        (r"\[2, 4, 3\]", np.zeros((2, 5, 3), "f4")),
    ):
        with pytest.raises(InputError, match=f"y: expected an output of .*{message}"):
            load_factory(made("doubled", target)).bind([FITTING], [target_array])()


def test_a_work_area_that_is_not_available_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any) -> Any:
        raise MemoryError

    model = load_factory(made("doubled", "llvm"))
    with monkeypatch.context() as patched:
        patched.setattr(np, "empty", none)
        with pytest.raises(RunError, match="of memory for 1,944 bytes"):
            model.run(FITTING)
    assert model.run(FITTING)["y"].shape == FITTING.shape
