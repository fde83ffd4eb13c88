"""``main`` and the model's name for tvm-ffi in libraries of graph modules and of dynamic models."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import mlfc
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.support.tensor_info import Array
from tests.native.extracted import imported
from tests.state_models import GRU_STATES, WIDTH, frames, gru, gru_steps

tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")

pytestmark = [pytest.mark.usefixtures("unoptimized_builds"), pytest.mark.filterwarnings("error::UserWarning")]

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3) - 6


def positives(rows: int | str = "n", columns: int = 4) -> onnx.ModelProto:
    """Return a model of ``y = relu(x @ WEIGHTS)`` and the indices ``z`` of its positive elements."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("NonZero", ["y"], ["z"]),
    ]
    kinds = {"x": (TensorProto.FLOAT, [rows, columns]), "y": (TensorProto.FLOAT, [rows, 3])}
    x, y = (helper.make_tensor_value_info(name, *kind) for name, kind in kinds.items())
    z = helper.make_tensor_value_info("z", TensorProto.INT64, [2, "k"])
    graph = helper.make_graph(nodes, "positives", [x], [y, z], [numpy_helper.from_array(WEIGHTS, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def checked_results(function: Any, rows: int) -> None:
    """Check fresh outputs and outputs of the caller."""
    data = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
    expected = np.maximum(data @ WEIGHTS, 0)
    at = np.array(np.nonzero(expected))
    found = [np.from_dlpack(item) for item in function(data)]
    out, places = np.empty_like(expected), np.empty_like(at)
    assert function(data, out, places) is None
    for y, z in (found, (out, places)):
        np.testing.assert_allclose(y, expected, rtol=1e-5)
        np.testing.assert_array_equal(z, at)


@pytest.mark.parametrize("target", ["c", "llvm"])
def test_graphs_run_by_main_and_by_name(models: Path, tmp_path: Path, target: str) -> None:
    data = np.random.default_rng(5).integers(-128, 128, (1, 49, 10, 1)).astype(np.int8)
    factory = imported(models / "kws_ref_model.tflite", "kws", executor="graph", target=target)
    path = factory.export_library(tmp_path / "kws.so", options=["-O0"])
    expected = next(iter(mlfc.load(path).run(data).values()))
    module = tvm_ffi.load_module(str(path))
    for function in (module.kws, module.get_function("main"), module):
        np.testing.assert_array_equal(np.from_dlpack(function(data)), expected)
        out = np.zeros_like(expected)
        assert function(data, out) is None
        np.testing.assert_array_equal(out, expected)
    assert module.get_function_metadata("kws")["outputs"][0]["shape"] == [1, 12]
    assert "int8[1, 49, 10, 1], read" in module.get_function_doc("kws")
    with ThreadPoolExecutor(4) as pool:  # one run at a time has the library's workspace
        for result in pool.map(module.kws, [data] * 16):
            np.testing.assert_array_equal(np.from_dlpack(result), expected)


ALIASES = {
    "one_result_twice": [("Relu", "x", "y"), ("Reshape", "y s", "z")],
    "an_input": [("Identity", "x", "y"), ("Relu", "x", "z")],
    "a_view_of_an_input": [("Reshape", "x s", "y"), ("Relu", "y", "z")],
    "a_constant": [("Relu", "x", "y"), ("Identity", "c", "z")],
    "an_operand": [("Relu", "x", "y"), ("Add", "y c", "z")],
}


@pytest.mark.parametrize("name", ALIASES)
def test_outputs_of_graphs_may_share_storage(tmp_path: Path, name: str) -> None:
    nodes = [helper.make_node(kind, inputs.split(), [output]) for kind, inputs, output in ALIASES[name]]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    results = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in "yz"]
    values = {"s": np.array([6]), "c": np.float32([[1, 2, 3]])}
    graph = helper.make_graph(
        nodes, name, [x], results, [numpy_helper.from_array(*item[::-1]) for item in values.items()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    factory = imported(model, name, executor="graph", target="llvm")
    data = np.random.default_rng(6).normal(size=(2, 3)).astype(np.float32)
    expected = [*factory.runtime.run(data).values()]
    function = tvm_ffi.load_module(str(factory.export_library(tmp_path / "model.so"))).get_function("main")
    given = [np.zeros_like(array) for array in expected]
    assert function(data, *given) is None
    for found in (map(np.from_dlpack, function(data)), given):
        for array, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(array, wanted)


def test_graphs_of_one_library_have_their_names(models: Path, tmp_path: Path) -> None:
    names = ("digits", "one", "other")
    made: list[Factory] = [imported(models / "hello_world_int8.tflite", name, executor="graph") for name in names]
    path = export_library(library_root(made), tmp_path / "both.so", options=["-O0"])
    module, data = tvm_ffi.load_module(str(path)), np.full((1, 1), 7, np.int8)
    for name in names:
        expected = next(iter(mlfc.load(path, name).run(data).values()))
        np.testing.assert_array_equal(np.from_dlpack(module[name](data)), expected)
    with pytest.raises(AttributeError, match="main"):
        module["main"]


@pytest.mark.parametrize("executor", ["graph", "vm"])
def test_a_function_resets_the_states_of_every_executor(tmp_path: Path, executor: str) -> None:
    begin = np.linspace(-1, 1, WIDTH, dtype=np.float32).reshape(1, WIDTH)
    model = mlfc.compile(gru(), states=GRU_STATES, state_init={"h_in": begin}, module_name="cell", executor=executor)
    library = tvm_ffi.load_module(str(model.export_library(tmp_path / "cell.so", options=["-O0"])))
    steps = frames(2)
    expected, _ = gru_steps(steps, begin)
    for _ in range(2):
        found = [np.from_dlpack(library.cell(frame)) for frame in steps]
        np.testing.assert_allclose(found, expected, atol=1e-5)
        library.cell_state_reset()


@pytest.mark.parametrize("options", [{}, {"shapes": {"x": (("n", 0, 8), 4)}}, {"target": "llvm"}])
def test_dynamic_models_return_outputs_in_the_shapes_of_the_run(tmp_path: Path, options: dict[str, Any]) -> None:
    factory = mlfc.compile(positives(), module_name="model", **options).factory
    path = factory.export_library(tmp_path / "model.so", options=["-O0"])
    module = tvm_ffi.load_module(str(path))
    for rows in (0, 1, 5, 8):
        checked_results(module.model, rows)
        checked_results(module["main"], rows)
    described = module.get_function_metadata("model")
    assert [item["shape"] for item in described["inputs"] + described["outputs"]] == [["n", 4], ["n", 3], [2, None]]
    assert "x : float32[n, 4], read" in module.get_function_doc("model")
    assert mlfc.load(path).run(np.ones((2, 4), np.float32))["y"].shape == (2, 3)


X, Y, Z = np.ones((5, 4), np.float32), np.zeros((5, 3), np.float32), np.zeros((2, 5), np.int64)
WRONG: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "count": ((), TypeError, "model: num_args should be 3, or 1 for results of its own, it is 0"),
    "kind": ((1,), TypeError, r"model: Expect arg\[0\] to be a tensor, x; it is an int"),
    "dtype": ((X.astype(np.float64),), TypeError, "model.x.dtype is expected to be float32, it is float64"),
    "rank": ((X[0],), ValueError, "model.x.ndim is expected to equal 2, it is 1"),
    "shape": ((X[:, :3].copy(),), ValueError, r"model.x.shape\[1\] has an unsatisfied constraint: it is 3"),
    "strides": ((X[::2],), ValueError, "model.x.strides: expected to be compact array"),
    "bound": ((np.ones((9, 4), np.float32),), ValueError, "model: it failed with status 5: x: input 0 does not fit"),
    "output": ((X, Y[:4], Z), ValueError, r"model.y.shape\[0\] has an unsatisfied constraint: it is 4, expected is 5"),
}


@pytest.fixture(scope="module")
def bounded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    factory = mlfc.compile(positives(), module_name="model", shapes={"x": (("n", 1, 8), 4)}).factory
    path = factory.export_library(tmp_path_factory.mktemp("bounded") / "model.so", options=["-O0"])
    return tvm_ffi.load_module(str(path))


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_arguments_of_dynamic_models_raise_exceptions(bounded: Any, wrong: str) -> None:
    arguments, kind, text = WRONG[wrong]
    with pytest.raises(kind, match=text):
        bounded.model(*arguments)


def elsewhere(kind: str) -> Callable[[Path], object]:
    """Return what exports a library whose model tvm-ffi cannot call."""

    def lists(path: Path) -> object:
        items = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, ["n"])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["m"])
        graph = helper.make_graph([helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0)], "g", [items], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        return mlfc.compile(model).factory.export_library(path)

    def code(path: Path) -> object:
        return export_library(mlfc.compile(positives_static(), executor="graph").factory.lib, path)

    def device(path: Path) -> object:
        module, params = mlfc.import_model(positives_static())
        return mlfc.build(module, "opencl", params).export_library(path)

    return {"lists": lists, "code": code, "device": device}[kind]


def positives_static() -> onnx.ModelProto:
    """Return a model of static shapes: ``y = relu(x @ WEIGHTS)``."""
    model = positives(2)
    del model.graph.node[2:], model.graph.output[1:]
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("lists", "sequences or optionals as inputs or outputs; load the library with mlfc.load_module"),
        ("code", "operators without the parameters of their graph; export the factory, not its lib"),
        ("device", "operators on the device 'opencl'; load the library with mlfc.load_module"),
    ],
)
def test_exports_warn_of_models_that_tvm_ffi_cannot_call(tmp_path: Path, kind: str, reason: str) -> None:
    with pytest.warns(UserWarning, match=f"expected a model that tvm-ffi can call, got {reason}") as caught:
        elsewhere(kind)(tmp_path / "model.so")
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        factory = mlfc.compile(positives_static(), executor="graph").factory
        export_library(factory.lib, tmp_path / "classic.so", abi=("classic",))


def test_parameters_of_every_graph_are_aligned_in_a_library(models: Path) -> None:
    from mlfc.library.module_tree import pack

    made = [imported(models / "hello_world_int8.tflite", name, executor="graph") for name in ("a", "bcd", "efghijk")]
    arrays: dict[str, dict[str, Array]] = {item.module_name: item.params for item in made}
    tree = pack(library_root(made))
    data = b"".join(bytes(chunk) for chunk in tree.content.chunks())  # type: ignore[union-attr]
    for module, params in arrays.items():
        for name, array in params.items():
            _, offset = tree.places[module][name]
            assert offset % array.itemsize == 0
            assert data[offset : offset + array.nbytes] == array.tobytes()
