"""Verdicts: rounding or a real difference, tied or wrong labels, NaN or numbers."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.compiler import build
from mlfc.errors import OptionError
from mlfc.frontend import import_for_run
from mlfc.options import ImportOptions
from mlfc.relay.ir import If
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.tensor_info import TensorInfo
from mlfc.verify import compare, verify
from mlfc.verify import witnesses as nudging
from mlfc.verify.judge import Judge, Subject, decision_of, range_of, rounds_inside
from mlfc.verify.witnesses import OwnRounding, float64_model, in_float64, nudged
from tests.onnx_graphs import GRAPHS, GraphMaker

Array = npt.NDArray[Any]
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"


def model_of(
    path: Path,
    nodes: list[onnx.NodeProto],
    shape: tuple[int, ...],
    constants: Mapping[str, Array],
    output: tuple[str, int] = ("y", TensorProto.FLOAT),
) -> Path:
    """Write a model with one float input ``x`` and one output."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(*output, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), path)
    return path


@pytest.fixture
def ill_conditioned(tmp_path: Path) -> Path:
    """Write a model that cancels nearly all digits of its sums, so each order of additions has another result."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "a"], ["p"]),
        helper.make_node("MatMul", ["x", "b"], ["q"]),
        helper.make_node("Sub", ["p", "q"], ["y"]),
    ]
    a = rng.standard_normal((512, 64)).astype(np.float32)
    b = (a * np.float32(1 + 2e-5) + rng.standard_normal(a.shape) * 1e-5).astype(np.float32)
    return model_of(tmp_path / "cancels.onnx", nodes, (4, 512), {"a": a, "b": b})


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Write a classifier of seven classes, of which 2 and 5 always have the same score."""
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((16, 7)).astype(np.float32)
    weights[:, 5] = weights[:, 2]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["y"], axis=1, keepdims=0),
    ]
    return model_of(tmp_path / "labels.onnx", nodes, (64, 16), {"w": weights}, ("y", TensorProto.INT64))


def with_outputs(monkeypatch: pytest.MonkeyPatch, change: Callable[[Array], Array]) -> None:
    """Change the outputs that compiled models return."""
    real = compare.load_factory

    class Changed:
        def __init__(self, module: Any) -> None:
            self.module = module
            self.inputs, self.outputs = module.inputs, module.outputs

        def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
            return {name: change(array.copy()) for name, array in self.module.run(inputs).items()}

    monkeypatch.setattr(compare, "load_factory", lambda factory: Changed(real(factory)))


def test_rounding_is_no_difference(ill_conditioned: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = verify(ill_conditioned, samples=3)
    (item,) = result.outputs
    assert item.largest > item.tolerance, "the model does not round enough for this test"
    assert result.is_within
    assert item.excuse == "rounding"
    assert item.evidence is not None
    assert 0 < item.evidence.reference_error < 8 * item.evidence.rounding


def test_layers_are_rounding_where_nodes_of_the_reference_agree_with_float64(
    tmp_path: Path,
) -> None:
    """Deviations of equal numbers from their mean are rounding, which depends on the order of the sum."""
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["h"]),
        helper.make_node("ReduceSum", ["h", "axis"], ["s"]),
        helper.make_node("Mul", ["s", "part"], ["m"]),
        helper.make_node("Unsqueeze", ["m", "again"], ["u"]),
        helper.make_node("Sub", ["h", "u"], ["d"]),
        helper.make_node("Add", ["d", "h"], ["y"]),
    ]
    constants = {
        "w": np.linspace(0.1, 0.9, 24, dtype=np.float32), "axis": np.array([1]), "again": np.array([1]),
        "part": np.float32(1 / 1001),
    }  # fmt: skip
    result = verify(model_of(tmp_path / "mean.onnx", nodes, (1, 1001, 24), constants), samples=0, layers=True)
    deviations = next(item for item in result.layers if item.tensor == "d")
    assert deviations.evidence is not None
    assert deviations.largest > 8 * deviations.evidence.rounding
    assert (deviations.excuse, result.is_within) == ("confirmed", True)


def test_weights_that_the_import_transposes_are_not_taken_for_the_tensor(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "scale"], ["w"], axis=1),
        helper.make_node("Gemm", ["x", "w"], ["y"]),
    ]
    constants = {"q": np.arange(12, dtype=np.int8).reshape(4, 3), "scale": np.array([0.5, 1, 2], np.float32)}
    result = verify(model_of(tmp_path / "gemm.onnx", nodes, (2, 4), constants), samples=1, layers=True)
    assert [item.tensor for item in result.layers if not item.is_within] == []


@pytest.mark.parametrize("part", [1e-2, 1e-3])
def test_what_is_more_than_rounding_differs(
    ill_conditioned: Path, monkeypatch: pytest.MonkeyPatch, part: float
) -> None:
    pytest.importorskip("onnxruntime")

    def wrong(array: Array) -> Array:
        array.flat[7] += part * np.abs(array).max() + 0.01
        return array

    with_outputs(monkeypatch, wrong)
    result = verify(ill_conditioned, samples=1)
    assert not result.is_within
    assert result.outputs[0].evidence is not None
    assert result.outputs[0].evidence.error > 8 * result.outputs[0].evidence.reference_error


def test_float64_alone_excuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Report a wrong import, although the code and float64 agree, because both are wrong."""
    pytest.importorskip("onnxruntime")
    real = compare.import_for_run

    def misread(*arguments: Any, **options: Any) -> Any:
        module, params = real(*arguments, **options)
        name = max(params, key=lambda key: params[key].size)
        return module, {**params, name: params[name] * np.float32(1.001)}

    monkeypatch.setattr(compare, "import_for_run", misread)
    result = verify(DIGITS / "digits.onnx", samples=2, layers=True)
    assert not result.is_within
    assert not all(item.is_within for item in result.layers)
    evidence = result.outputs[0].evidence
    assert evidence is not None
    assert evidence.error < evidence.reference_error


def test_small_probabilities_are_compared_with_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accept the correct result 1e-9 of a sigmoid; ONNX Runtime, whose error is a few last bits of 1, returns 0."""
    pytest.importorskip("onnxruntime")
    nodes = [helper.make_node("Add", ["x", "b"], ["s"]), helper.make_node("Sigmoid", ["s"], ["y"])]
    path = model_of(tmp_path / "s.onnx", nodes, (256,), {"b": np.asarray(-20, np.float32)})
    result = verify(path, samples=2)
    assert result.is_within
    assert result.outputs[0].excuse == "rounding"
    with_outputs(monkeypatch, lambda array: array * np.float32(1.01))
    assert not verify(path, samples=2).is_within


def test_a_wrong_label_differs_however_near(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    assert verify(labels, samples=2).is_within

    def next_label(array: Array) -> Array:
        array[3] = (array[3] + 1) % 7
        return array

    with_outputs(monkeypatch, next_label)
    result = verify(labels, samples=2)
    assert not result.is_within
    assert "element 3" in result.outputs[0].note
    assert "differ by" in result.outputs[0].note


def test_labels_whose_scores_tie_are_shown_and_equal(labels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    with_outputs(monkeypatch, lambda array: np.where(array == 2, 5, array))
    result = verify(labels, samples=2)
    (item,) = result.outputs
    assert item.elements > 0, "no sample has the label that ties"
    assert result.is_within
    assert item.excuse == "tie"
    assert "5, but 2 in ONNX Runtime" in item.note


def test_nan_in_both_is_said_and_on_one_side_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    path = model_of(tmp_path / "log.onnx", [helper.make_node("Log", ["x"], ["y"])], (40,), {})
    result = verify(path, samples=1)
    assert result.is_within
    assert result.outputs[0].nans == 40  # from the minimum, -1

    def hidden(array: Array) -> Array:
        return np.nan_to_num(array, nan=0.0)

    with_outputs(monkeypatch, hidden)
    result = verify(path, samples=1)
    assert not result.is_within
    assert result.outputs[0].lone_nans > 0


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    """Write a dense layer between dequantize and quantize, with 512 int8 outputs."""
    rng = np.random.default_rng(2)
    constants = {
        "w": rng.integers(-127, 128, (32, 64)).astype(np.int8), "ws": np.float32(0.01), "wz": np.int8(0),
        "xs": np.float32(1 / 64), "xz": np.int8(0), "ys": np.float32(0.037), "yz": np.int8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "ys", "yz"], ["y"]),
    ]
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    return model_of(tmp_path / "qdq.onnx", nodes, (8, 32), arrays, ("y", TensorProto.INT8))


def test_one_step_of_a_quantized_tensor_may_round_the_other_way_but_not_all(
    quantized: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("onnxruntime")
    assert verify(quantized, samples=2).is_within

    def one_step(array: Array) -> Array:
        array.flat[100] = np.clip(int(array.flat[100]) - 1, -128, 127)
        return array

    with monkeypatch.context() as patch:
        with_outputs(patch, one_step)
        result = verify(quantized, samples=2)
        assert result.is_within
        assert result.outputs[0].excuse == "rounding"
    with monkeypatch.context() as patch:
        with_outputs(patch, lambda array: np.where(array < 127, array + 1, array).astype(np.int8))
        assert not verify(quantized, samples=2).is_within


@pytest.mark.parametrize("operator", ["QLinearMatMul", "MatMulInteger", "QLinearConv", "ConvInteger"])
def test_sums_of_the_reference_do_not_saturate(tmp_path: Path, operator: str) -> None:
    """Avoid ONNX Runtime's saturation: without VNNI, it adds two products in 16 bits, and 255 * 127 * 2 overflows."""
    pytest.importorskip("onnxruntime")
    is_conv, is_plain = "Conv" in operator, "Integer" in operator
    weight = np.full((8, 64, 1, 1) if is_conv else (64, 8), 127, np.int8)
    zero = np.full(8 if is_conv and not is_plain else (), 0, np.int8)
    constants = {"w": weight, "wz": zero, "s": np.float32(1 / 255), "z": np.uint8(0), "yz": np.uint8(1)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    if is_plain:
        nodes += [
            helper.make_node(operator, ["q", "w", "z", "wz"], ["n"]),
            helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
        ]
    else:
        nodes += [
            helper.make_node(operator, ["q", "s", "z", "w", "s", "wz", "ys", "yz"], ["n"]),
            helper.make_node("DequantizeLinear", ["n", "ys", "yz"], ["y"]),
        ]
    shape = (1, 64, 3, 3) if is_conv else (4, 64)
    arrays = {name: np.asarray(value) for name, value in constants.items()}
    arrays["ys"] = np.asarray(1.0, np.float32)
    result = verify(model_of(tmp_path / "q.onnx", nodes, shape, arrays), samples=2)
    assert result.is_within, result.outputs
    assert result.outputs[0].largest == 0


def test_no_step_is_allowed_beside_litert(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ai_edge_litert")

    def one_step(array: Array) -> Array:
        array.flat[3] ^= 1
        return array

    with_outputs(monkeypatch, one_step)
    assert not verify(DIGITS / "digits_int8.tflite", samples=1).is_within


def test_a_users_tolerance_is_all_that_counts(ill_conditioned: Path) -> None:
    pytest.importorskip("onnxruntime")
    assert verify(ill_conditioned, samples=1, rtol=1e-2, atol=1e-2).is_within
    result = verify(ill_conditioned, samples=1, rtol=1e-7)
    assert not result.is_within
    assert result.outputs[0].evidence is None


@pytest.mark.parametrize("name", ["conv_norm_relu", *sorted(GRAPHS)[::7]])
def test_in_float64_a_model_computes_the_same(name: str) -> None:
    """Compare with float32: results are equal except for rounding."""
    maker = GraphMaker()
    module, params = mlfc.import_model(maker.model(GRAPHS[name](maker)))
    wide, _ = in_float64(module)
    assert [item.dtype for item in outputs_of(wide) if item.dtype.startswith("float")] == ["float64"]
    exact, _ = float64_model(module, params, "c")
    narrow = mlfc.build(module, "llvm", params).runtime
    inputs = fill(exact.inputs, "random", 3)
    for title, array in narrow.run(inputs).items():
        scale = np.abs(array.astype(np.float64)).max()
        step = 0.0 if array.dtype.kind == "f" else 1.0
        np.testing.assert_allclose(exact.run(inputs)[title], array, rtol=0, atol=1e-5 * scale + step)


def decided_model(path: Path) -> Path:
    """Write a model with a runtime branch and a runtime number of iterations."""
    branches = [
        helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node(name, ["p"], [name])],
            name, [], [helper.make_tensor_value_info(name, TensorProto.FLOAT, (8,))],
        )
        for name in ("Sigmoid", "Tanh")
    ]  # fmt: skip
    body = helper.make_graph(
        [helper.make_node("Mul", ["before", "x"], ["m"]), helper.make_node("Add", ["m", "third"], ["after"]),
         helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("at", TensorProto.INT64, ()),
         helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("before", TensorProto.FLOAT, (8,))],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("after", TensorProto.FLOAT, (8,))],
    )  # fmt: skip
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Mul", ["most", "times"], ["turns"]),
        helper.make_node("Cast", ["turns"], ["count"], to=TensorProto.INT64),
        helper.make_node("Loop", ["count", "", "x"], ["looped"], body=body),
        helper.make_node("Greater", ["most", "third"], ["large"]),
        helper.make_node("If", ["large"], ["chosen"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Concat", ["looped", "chosen"], ["y"], axis=0),
    ]
    w = np.random.default_rng(1).uniform(-1, 1, (8, 8)).astype(np.float32)
    return model_of(path, nodes, (8,), {"third": np.array(1 / 3, np.float32), "times": np.array(5, np.float32), "w": w})


def test_in_float64_branches_and_loops_compute_the_same(tmp_path: Path) -> None:
    module, params = import_for_run(decided_model(tmp_path / "decided.onnx"), ImportOptions(dynamic=True))
    assert len(module.functions) > 3
    exact, _ = float64_model(module, params, "c")
    narrow = load_factory(build(module, "llvm", params))
    x = np.random.default_rng(2).uniform(-1, 1, 8).astype(np.float32)
    for factor in (1.0, 0.25):
        (ours,), (truth,) = narrow.run({"x": x * factor}).values(), exact.run({"x": x * factor}).values()
        assert truth.dtype == np.float64
        assert 0 < np.abs(ours - truth).max() < 1e-6
    chosen = module.main.body.args[0].fields[1]
    assert isinstance(chosen, If)
    assert range_of(chosen) == 0.0
    assert range_of(chosen, module.functions) == 1.0


def outputs_of(module: Any) -> list[Any]:
    body = module.main.body
    return [item.type for item in getattr(body, "fields", (body,))]


def test_last_bits_move_and_nothing_else() -> None:
    rng = np.random.default_rng(0)
    values = np.concatenate([[0.0, -0.0, np.inf], rng.standard_normal(1000)]).astype(np.float32)
    other = nudged(values, rng)
    np.testing.assert_array_max_ulp(other[3:], values[3:], 1)
    assert (other[3:] != values[3:]).mean() == pytest.approx(2 / 3, abs=0.1)
    np.testing.assert_array_equal(other[:2], values[:2])
    counts = np.arange(5)
    assert nudged(counts, rng) is counts
    ends = np.array([np.finfo(np.float32).min, -np.inf, np.nan, np.finfo(np.float32).max], np.float32)
    for most in (1, 256):
        np.testing.assert_array_equal(nudged(ends, rng, most), ends)


def test_exact_numbers_have_no_last_bits_to_move(tmp_path: Path) -> None:
    """Leave the exponent and the 1 in ``1 - mask`` exact; otherwise the estimated rounding would be NaN."""
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"]),
        helper.make_node("Sub", ["one", "mask"], ["hidden"]),
        helper.make_node("Mul", ["hidden", "lowest"], ["bias"]),
        helper.make_node("Add", ["squares", "bias"], ["scores"]),
        helper.make_node("Mul", ["scores", "third"], ["y"]),
    ]
    numbers = {"two": 2.0, "one": 1.0, "lowest": np.finfo(np.float32).min, "third": 1 / 3}
    constants = {name: np.array(value, np.float32) for name, value in numbers.items()}
    path = model_of(tmp_path / "m.onnx", nodes, (4, 8), {**constants, "mask": np.ones(8, np.float32)})
    x = {"x": np.linspace(-2, 2, 32, dtype=np.float32).reshape(4, 8)}
    last_bits = OwnRounding(path, "ONNX Runtime", layers=False).of(["y"], x)["y"]
    steps = OwnRounding(path, "ONNX Runtime", layers=False, is_quantized=True).of(["y"], x)["y"]
    assert 1e-7 < last_bits < 1e-6 < steps < 1e-3


def test_rounding_inside_of_branches_is_seen(ill_conditioned: Path, tmp_path: Path) -> None:
    inner = onnx.load(ill_conditioned).graph
    outer = helper.make_graph(
        [helper.make_node("If", ["yes"], ["y"], then_branch=without_inputs(inner), else_branch=without_inputs(inner))],
        "g", list(inner.input), list(inner.output), [numpy_helper.from_array(np.array(True), "yes")],
    )  # fmt: skip
    path = tmp_path / "branches.onnx"
    onnx.save(helper.make_model(outer, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    x = np.random.default_rng(1).standard_normal((4, 512)).astype(np.float32)
    for model in (ill_conditioned, path):
        # the effect of the last bits of x is small compared with that of the weights
        rounding = OwnRounding(model, "ONNX Runtime", layers=False).of(["y"], {"x": np.ones_like(x)})["y"]
        assert rounding > 1e-5


def test_codes_that_round_the_other_way_are_rounding_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(5)
    nodes, source, constants = [], "x", {}
    for layer in range(6):
        q, scale, zero, product, real, out = (f"{what}{layer}" for what in ("q", "s", "z", "p", "r", "y"))
        constants[f"w{layer}"] = rng.integers(-127, 128, (128, 128)).astype(np.int8)
        nodes += [
            helper.make_node("DynamicQuantizeLinear", [source], [q, scale, zero]),
            helper.make_node("MatMulInteger", [q, f"w{layer}", zero], [product]),
            helper.make_node("Cast", [product], [real], to=TensorProto.FLOAT),
            helper.make_node("Mul", [real, "small"], [f"m{layer}"]),
            helper.make_node("Tanh", [f"m{layer}"], [out if layer < 5 else "y"]),
        ]
        source = out
    path = model_of(tmp_path / "codes.onnx", nodes, (64, 128), {**constants, "small": np.array(2e-5, np.float32)})
    module, _ = mlfc.import_model(path)
    assert rounds_inside([module.main.body])
    assert not rounds_inside([mlfc.import_model(DIGITS / "digits.onnx")[0].main.body])
    x = {"x": rng.uniform(-1, 1, (64, 128)).astype(np.float32)}
    # the effect of one code, a thousand times that of a last bit
    stepped = OwnRounding(path, "ONNX Runtime", layers=False, is_quantized=True).of(["y"], x)["y"]
    assert 1e-4 < stepped < 0.1
    np.savez(tmp_path / "x.npz", **x)
    for size, is_within in ((0, True), (stepped / 2, True), (9 * stepped, False)):
        with_outputs(monkeypatch, lambda array, size=size: array + np.float32(size))
        assert verify(path, inputs=tmp_path / "x.npz").is_within == is_within, size
        monkeypatch.undo()


def without_inputs(graph: onnx.GraphProto) -> onnx.GraphProto:
    """Return a graph as a branch, whose inputs are the tensors around it."""
    branch = onnx.GraphProto()
    branch.CopyFrom(graph)
    del branch.input[:]
    return branch


def test_what_decides_a_tensor_is_found(labels: Path, tmp_path: Path) -> None:
    module, _ = mlfc.import_model(labels)
    found = decision_of(module.main.body)
    assert found is not None
    assert found.call.attrs["axis"] == (1,) or found.call.attrs["axis"] == 1
    scores = model_of(tmp_path / "s.onnx", [helper.make_node("Sigmoid", ["x"], ["y"])], (4,), {})
    body = mlfc.import_model(scores)[0].main.body
    assert decision_of(body) is None
    assert range_of(body) == 1.0
    nodes = [helper.make_node("Sigmoid", ["x"], ["s"]), helper.make_node("ReduceMean", ["s"], ["y"], axes=[0])]
    averaged = mlfc.import_model(model_of(tmp_path / "a.onnx", nodes, (4,), {}))[0].main.body
    assert decision_of(averaged) is None
    assert range_of(averaged) == 1.0


class _Counted:
    """A reference with nine layers that are equal for all references, and one, ``z``, that differs.

    `alive` contains the arrays of all results that are still alive.
    """

    input_names, output_names = frozenset("x"), frozenset("z")

    def __init__(
        self, alive: weakref.WeakSet[Any], z: float, at_start: Callable[[int], object] = lambda _: None
    ) -> None:
        self.outputs = [TensorInfo(name, (8,), "float32") for name in [*"abcdefghi", "z"]]
        self._alive, self._z, self._at_start = alive, z, at_start
        self.runs = self.begun = 0

    def begin(self) -> None:
        self.begun += 1

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self._at_start(len(self._alive))
        self.runs += 1
        results = {info.name: np.ones(8, np.float32).view(_Tracked) for info in self.outputs}
        results["z"] *= np.float32(self._z)
        self._alive.update(results.values())
        return results


class _Tracked(np.ndarray[Any, Any]):
    """An array that can be an element of a WeakSet."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> Any:
        return np.equal(np.asarray(self), np.asarray(other)) if isinstance(other, np.ndarray) else NotImplemented


def test_tensors_are_released_when_they_have_been_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that the results of nine equal layers are released while the tenth, which differs, is judged."""
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    first, changed, exact_runs = list[int](), list[int](), list[int]()
    variants: list[_Counted] = []

    def variant(*_: Any, **options: Any) -> _Counted | None:
        if options["stored"]:
            return None
        variants.append(_Counted(alive, 2 + len(variants) / 64, changed.append))
        return variants[-1]

    monkeypatch.setattr(nudging, "_variant", variant)
    monkeypatch.setattr(Judge, "_exact_outputs", lambda *_: exact_runs.append(len(alive)))
    (tmp_path / "m.onnx").write_bytes(b"")

    def refused() -> Any:
        raise OptionError("not imported")

    judge = Judge(Subject(tmp_path / "m.onnx", "ONNX Runtime", True, "c", refused))
    ours, theirs = _Counted(alive, 2.01, first.append), _Counted(alive, 2)
    sets = [(f"set {index}", {"x": np.ones(1, np.float32)}) for index in range(3)]
    comparing = compare._Comparing(ours, theirs, sets, None, judge)  # type: ignore[arg-type]
    found = comparing.run()
    assert [item.tensor for item in found] == [*"abcdefghi", "z"]
    assert all(item.is_within for item in found)
    assert found[-1].excuse == "rounding"
    assert first == [0, 0, 0]  # none of an earlier set of inputs
    assert exact_runs == [2, 2, 2]  # z, twice
    assert changed == [2, 3, 4] * 3  # and one z of each earlier changed model
    assert [(one.runs, one.begun) for one in variants] == [(3, 3)] * 3


def test_each_set_is_judged_once_and_a_settled_tensor_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    asked: list[list[str]] = []

    def judge(doubtful: Any, inputs: Any) -> Any:
        asked.append([item.tensor for item, *_ in doubtful])
        return [item for item, *_ in doubtful]

    ours = _Counted(alive, 3)
    run = ours.run
    monkeypatch.setattr(ours, "run", lambda inputs: {**run(inputs), "a": np.full(8, 1 + inputs["x"], np.float32)})
    sets = [(str(size), {"x": size}) for size in (1, 3, 2)]
    comparing = compare._Comparing(ours, _Counted(alive, 2), sets, None, judge)  # type: ignore[arg-type]
    assert {item.tensor: item.sample for item in comparing.run() if not item.is_within} == {"a": "3", "z": "1"}
    assert asked == [["a", "z"], ["a"]]
