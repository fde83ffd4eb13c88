"""ONNX models of opsets 1 to 6: the semantics of their nodes, and models written by PyTorch."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, compose, helper, numpy_helper

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import MlfcError
from tests.merged import merge

# the tests are about the nodes, not about LLVM's optimizations
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
STORED = sorted((Path(onnx.__file__).parent / "backend" / "test" / "data").glob("pytorch-*/*"))
GROUPS = 3
A = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11
C, ROW, PLANE, BASE = A[0, :, 0], A[0, 0], A[0], np.abs(A) + 1
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 2, 2)).astype(np.float32)
SPREAD = np.array([0.5, 1.0, 2.0], np.float32)
CHANNELS, SPREADS, EACH = C.reshape(3, 1, 1), SPREAD.reshape(3, 1, 1), IMAGE[0] + 4
CONSTANT = ("Reshape", "Split:2", "Tile")  # the inputs after the first must be constants


def model(op: str, opset: int, inputs: list[np.ndarray[Any, Any]], attrs: dict[str, Any], fixed: int) -> bytes:
    """Return a model of one node whose inputs from `fixed` on are constants; "Op:2" returns the third output of Op."""
    names = [f"i{index}" for index in range(len(inputs))]
    op, _, place = op.partition(":")
    node = helper.make_node(op, names, [*(f"unread{index}" for index in range(int(place or 0))), "y"], **attrs)
    types = [helper.np_dtype_to_tensor_dtype(value.dtype) for value in inputs]
    given = [
        helper.make_tensor_value_info(name, kind, value.shape)
        for name, kind, value in zip(names, types, inputs, strict=True)
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in zip(names, inputs, strict=True)]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", given, [output], constants[fixed:])
    return bytes(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=3).SerializeToString()
    )


def normalized(x: np.ndarray[Any, Any], scale: np.ndarray[Any, Any], spread: np.ndarray[Any, Any]) -> Any:
    """Return BatchNormalization with `scale` as scale and bias, and `spread` as mean and variance."""
    return (x - spread) * (scale / np.sqrt(spread + np.float32(1e-5))) + scale


CASES: dict[str, tuple[str, int, list[Any], dict[str, Any], Any]] = {
    "same shape": ("Add", 6, [A, A], {}, A + A),
    "in place": ("Add", 1, [A, A], {"consumed_inputs": [0, 0]}, A + A),
    "last axes": ("Sub", 6, [A, PLANE], {"broadcast": 1}, A - PLANE),
    "from an axis": ("Mul", 6, [A, C], {"broadcast": 1, "axis": 1}, A * C[:, None]),
    "from an axis behind": ("Div", 1, [A, C], {"broadcast": 1, "axis": -2}, A / C[:, None]),
    "two axes": ("Pow", 1, [BASE, PLANE[:2, :3]], {"broadcast": 1, "axis": 0}, BASE ** PLANE[:2, :3, None]),
    "one element": ("Add", 6, [A, ROW[:1]], {"broadcast": 1}, A + ROW[0]),
    "comparison": ("Greater", 1, [A, C], {"broadcast": 1, "axis": 1}, C[:, None] < A),
    "slope of channels": ("PRelu", 6, [A, C], {}, np.where(A < 0, A * C[:, None], A)),
    "one slope": ("PRelu", 1, [A, C[:1]], {"consumed_inputs": [0, 0]}, np.where(A < 0, A * C[0], A)),
    "statistics": (
        "BatchNormalization", 6, [IMAGE, C, C, SPREAD, SPREAD], {"is_test": 1}, normalized(IMAGE, CHANNELS, SPREADS),
    ),
    "statistics of elements": (
        "BatchNormalization", 7, [IMAGE, EACH, EACH, EACH**2, EACH**2], {"spatial": 0},
        normalized(IMAGE, EACH, EACH**2),
    ),
    "statistics of features": (
        "BatchNormalization", 1, [PLANE.T, C, C, SPREAD, SPREAD],
        {"is_test": 1, "spatial": 0, "consumed_inputs": [0] * 5}, normalized(PLANE.T, C, SPREAD),
    ),
    "type by name": ("Cast", 1, [A], {"to": "INT32"}, A.astype(np.int32)),
    "type by number": ("Cast", 6, [A], {"to": TensorProto.INT32}, A.astype(np.int32)),
    "joined along channels": ("Concat", 1, [A, A], {}, np.concatenate([A, A], 1)),
    "shape in the node": ("Reshape", 1, [A], {"shape": [0, -1]}, A.reshape(2, 12)),
    "shape beside it": ("Reshape", 5, [A, np.array([4, 6])], {}, A.reshape(4, 6)),
    "paddings": ("Pad", 1, [PLANE], {"paddings": [0, 1, 2, 0]}, np.pad(PLANE, ((0, 2), (1, 0)))),
    "tiles": ("Tile", 1, [PLANE, np.array([2], np.int64), np.array([1], np.int64)], {}, np.tile(PLANE, (1, 2))),
    "tiles of the dtype of the data": ("Tile", 1, [PLANE, SPREAD[2:], SPREAD[1:2]], {}, np.tile(PLANE, (1, 2))),
    "sizes of the dtype of the data": ("Split:2", 1, [A, SPREAD[[1, 1, 2]]], {"axis": 2}, A[:, :, 2:]),
    "repeats": ("Tile", 6, [PLANE, np.array([2, 1])], {}, np.tile(PLANE, (2, 1))),
    "height and width": (
        "Upsample", 1, [IMAGE], {"height_scale": 2.0, "width_scale": 3.0}, IMAGE.repeat(2, 2).repeat(3, 3),
    ),
    "defaults of opset 1": ("Selu", 1, [A], {}, np.where(A > 0, A, 1.6732 * (np.exp(A) - 1)) * 1.0507),
    "added bias": ("Gemm", 6, [PLANE, PLANE.T, C], {"broadcast": 1}, PLANE @ PLANE.T + C),
    "power": ("LpPool", 1, [IMAGE], {"p": 2.0, "kernel_shape": [2, 2]}, np.sqrt((IMAGE**2).sum((2, 3), keepdims=True))),
    "power of all": ("GlobalLpPool", 1, [A], {"p": 3.0}, np.cbrt((np.abs(A) ** 3).sum(2, keepdims=True))),
    "root of squares": ("GlobalLpPool", 2, [IMAGE], {}, np.sqrt((IMAGE**2).sum((2, 3), keepdims=True))),
    "no longer trained": ("Dropout", 6, [A], {"is_test": 1, "ratio": 0.5}, A),
    "mask of opset 6": ("Dropout:1", 6, [A], {"is_test": 1}, np.zeros_like(A)),
    "mask of opset 7": ("Dropout:1", 7, [A], {"ratio": 0.5}, np.zeros_like(A)),
    "mask of opset 10": ("Dropout:1", 10, [A], {}, np.zeros(A.shape, bool)),
    "mask of opset 12": ("Dropout:1", 12, [A], {}, np.ones(A.shape, bool)),
}  # fmt: skip


def results(models: list[tuple[onnx.ModelProto, list[np.ndarray[Any, Any]]]]) -> list[list[np.ndarray[Any, Any]]]:
    """Compile models together and return the outputs of each."""
    imported, inputs = [], {}
    for index, (proto, given) in enumerate(models):
        renamed = compose.add_prefix(proto, f"m{index} ")
        module, params = mlfc.import_model(renamed)
        names = [param.name for param in module.main.params if param.name not in params]
        inputs |= dict(zip(names, given, strict=True))
        imported.append((module, params))
    module, params, firsts = merge(imported)
    factory = mlfc.build(module, "llvm", params)
    found = list(load_factory(factory).run(inputs).values())
    return [found[first:last] for first, last in pairwise((*firsts, len(found)))]


def differences(name: str, result: np.ndarray[Any, Any], expected: np.ndarray[Any, Any], rtol: float) -> list[str]:
    if (result.shape, result.dtype) != (expected.shape, expected.dtype):
        return [f"{name}: {result.dtype}{result.shape} instead of {expected.dtype}{expected.shape}"]
    return (
        []
        if np.allclose(result, expected, rtol=rtol, atol=1e-5, equal_nan=True)
        else [f"{name}: {result} instead of {expected}"]
    )


def test_older_nodes_mean_what_they_did() -> None:
    models = []
    for op, opset, inputs, attrs, _ in CASES.values():
        fixed = 1 if op in CONSTANT else len(inputs)
        models.append((onnx.ModelProto.FromString(model(op, opset, inputs, attrs, fixed)), inputs[:fixed]))
    faults = []
    for (name, case), (result,) in zip(CASES.items(), results(models), strict=True):
        faults += differences(name, result, case[4], 1e-5)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("op", "opset", "inputs", "attrs", "message"),
    [
        ("Add", 6, [A, C], {}, "the attribute 'broadcast' is not set"),
        ("Add", 6, [A, PLANE], {"broadcast": 1, "axis": 2}, "does not fit into"),
        ("Add", 6, [A, C], {"broadcast": 1, "axis": 3}, "outside a tensor of 3 dimensions"),
        ("Add", 7, [A, A], {"broadcast": 1}, "attribute 'broadcast'"),
        ("BatchNormalization", 6, [IMAGE, C, C, SPREAD, SPREAD], {}, r"training mode.*is_test=1"),
        ("Cast", 1, [A], {"to": "NUMBER"}, "unknown type 'NUMBER'"),
        ("LpPool", 1, [IMAGE], {"p": 2.5, "kernel_shape": [2, 2]}, "p=2.5"),
        ("Upsample", 1, [IMAGE], {"height_scale": 2.0}, "requires the attribute 'width_scale'"),
        ("Tile", 1, [PLANE, np.array([2, 1]), np.array([1])], {}, "one number each"),
        ("Tile", 1, [PLANE, SPREAD[:1], SPREAD[1:2]], {}, r"input 1 must be whole numbers, got \[0.5\]"),
        (
            "BatchNormalization",
            7,
            [IMAGE, C, C, SPREAD, SPREAD],
            {"spatial": 0},
            r"statistics of shape \(3, 2, 2\), got",
        ),
    ],
)
def test_what_older_opsets_did_not_allow_is_refused(
    op: str, opset: int, inputs: list[Any], attrs: dict[str, Any], message: str
) -> None:
    with pytest.raises(MlfcError, match=message):
        mlfc.import_model(model(op, opset, inputs, attrs, 1))


def test_older_nodes_of_dynamic_shapes_mean_what_they_did() -> None:
    names = ("same shape", "from an axis", "statistics of elements", "shape in the node", "shape beside it", "repeats")
    for name in names:
        op, opset, given, attrs, expected = CASES[name]
        fixed = 1 if op in CONSTANT or name.startswith("statistics") else len(given)
        proto = onnx.ModelProto.FromString(model(op, opset, given, attrs, fixed))
        for value in proto.graph.input:
            for axis, size in enumerate(value.type.tensor_type.shape.dim):
                size.dim_param = f"{value.name}_{axis}"
        compiled = mlfc.compile(proto, "llvm")
        (found,) = compiled.run({f"i{place}": value for place, value in enumerate(given[:fixed])}).values()
        assert not differences(name, found, expected, 1e-5)


def test_top_k_of_a_dynamic_axis_reads_k_from_its_attribute() -> None:
    """Check the number of elements at run time, as with the input that replaced the attribute in opset 10."""
    proto = onnx.ModelProto.FromString(model("TopK", 9, [PLANE], {"k": 2, "axis": 0}, 1))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    compiled = mlfc.compile(proto, "llvm")
    assert np.array_equal(compiled.run({"i0": PLANE})["y"], PLANE[:0:-1])
    with pytest.raises(MlfcError, match="elements that there are"):
        compiled.run({"i0": PLANE[:1]})


def tensors(folder: Path, kind: str) -> list[np.ndarray[Any, Any]]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.rpartition("_")[2]))
    return [numpy_helper.to_array(TensorProto.FromString(path.read_bytes())) for path in files]


@pytest.mark.parametrize("group", range(GROUPS))
def test_models_that_pytorch_wrote_give_what_it_computed(group: int) -> None:
    folders = STORED[group::GROUPS]
    models = [(onnx.load(folder / "model.onnx"), tensors(folder / "test_data_set_0", "input")) for folder in folders]
    faults = []
    for folder, found in zip(folders, results(models), strict=True):
        for result, expected in zip(found, tensors(folder / "test_data_set_0", "output"), strict=True):
            faults += differences(folder.name, result, expected, 1e-3)
    assert not faults, "\n".join(faults)


def test_there_are_models_that_pytorch_wrote() -> None:
    assert len(STORED) >= 117
