"""Dequantized weights of float layers stay packed, and the layers compute what ONNX's definitions specify."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc import transform
from mlfc.relay import ir
from tests.relay_run import operators

Array = npt.NDArray[Any]
pytestmark = pytest.mark.usefixtures("quick_builds")
TARGETS = ("llvm", "c -mcpu=cortex-m4")
TOLERANCE = 2e-6  # relative to the largest result
MICROSOFT = "com.microsoft"
DTYPES = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int2": ml_dtypes.int2, "uint2": ml_dtypes.uint2}
RNG = np.random.default_rng(5)


@dataclass
class Network:
    """Independent layers, each with its own input and output."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)

    def constant(self, values: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = values
        return name

    def data(self, *shape: int, high: int = 0) -> str:
        name = f"x{len(self.inputs)}"
        values = RNG.standard_normal(shape).astype(np.float32)
        self.inputs[name] = RNG.integers(-high, high, shape) if high else values
        return name

    def node(self, operator: str, inputs: list[str], domain: str = "", **attributes: Any) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def dequantized(self, shape: tuple[int, ...], dtype: str, *, axis: int | None, block: int = 0, zero: bool) -> str:
        """Add weights with one scale, with a scale per index of an axis, or with one per block along it."""
        low, high = (
            (0, 1 << int(dtype[-1])) if dtype[0] == "u" else (-(1 << (int(dtype[-1]) - 1)), 1 << (int(dtype[-1]) - 1))
        )
        kind = DTYPES.get(dtype, dtype)
        scales: tuple[int, ...] = ()
        if axis is not None:
            scales = (shape[axis],)
            if block:
                scales = tuple(-(-extent // block) if at == axis else extent for at, extent in enumerate(shape))
        names = [
            self.constant(RNG.integers(low, high, shape).astype(np.int32).astype(kind)),
            self.constant(RNG.uniform(0.01, 0.1, scales).astype(np.float32)),
        ]
        if zero:
            names.append(self.constant(RNG.integers(low, high, scales).astype(np.int32).astype(kind)))
        attributes = {name: value for name, value in (("axis", axis), ("block_size", block)) if value is not None}
        return self.node("DequantizeLinear", names, **attributes)

    def model(self, outputs: list[str], opset: int = 25) -> bytes:
        """Return the network with some of its tensors as outputs."""
        kinds = {name: helper.np_dtype_to_tensor_dtype(value.dtype) for name, value in self.inputs.items()}
        values = [helper.make_tensor_value_info(name, kinds[name], self.inputs[name].shape) for name in kinds]
        graph = helper.make_graph(
            self.nodes, "packed", values, [onnx.ValueInfoProto(name=name) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )  # fmt: skip
        opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
        made: onnx.ModelProto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return bytes(made.SerializeToString())


def check(data: bytes, inputs: Mapping[str, Array], expected: list[Array], tolerance: float = TOLERANCE) -> None:
    """Compare a model on each target with its expected outputs."""
    for target in TARGETS:
        found = mlfc.compile(data, target=target).run(dict(inputs))
        for (name, ours), theirs in zip(found.items(), expected, strict=True):
            assert ours.shape == theirs.shape, name
            assert ours.dtype == theirs.dtype, name
            worst = np.abs(ours.astype(np.float64) - theirs).max() / np.abs(theirs).max()
            assert worst <= tolerance, f"{name} on {target}: {worst}"


def lowered(data: bytes) -> list[str]:
    return operators(transform.run(*mlfc.import_model(data)))


def bits_layer(
    net: Network, rows: int, sizes: tuple[int, int], bits: int, block: int, *, zero: str = "", bias: bool = False
) -> str:
    """Add a MatMulNBits with weights of shape (inner, units)."""
    inner, units = sizes
    blocks = -(-inner // block)
    names = [
        net.data(rows, inner),
        net.constant(RNG.integers(0, 256, (units, blocks, block * bits // 8), np.uint8)),
        net.constant(RNG.uniform(0.01, 0.1, units * blocks).astype(np.float32)),
        {
            "": lambda: "",
            "packed": lambda: net.constant(RNG.integers(0, 256, units * -(-blocks * bits // 8), np.uint8)),
            "float": lambda: net.constant(RNG.uniform(0, 1 << bits, units * blocks).astype(np.float32)),
        }[zero](),
        net.constant(np.arange(inner, dtype=np.int32) // block) if not zero and bits < 8 else "",
        net.constant(RNG.standard_normal(units).astype(np.float32)) if bias else "",
    ]
    return net.node("MatMulNBits", names, MICROSOFT, K=inner, N=units, bits=bits, block_size=block)


def test_products_with_packed_weights_are_those_of_onnx_runtime() -> None:
    net = Network()
    outputs = [
        bits_layer(net, 1, (64, 48), 4, 32),
        bits_layer(net, 1, (70, 37), 4, 32, zero="packed", bias=True),
        bits_layer(net, 3, (1100, 37), 4, 16, zero="packed", bias=True),
        bits_layer(net, 9, (530, 34), 4, 128, zero="packed"),
        bits_layer(net, 9, (130, 33), 2, 32, zero="packed", bias=True),
        bits_layer(net, 1, (130, 33), 2, 32, zero="float"),
        bits_layer(net, 7, (67, 18), 4, 16, zero="float", bias=True),
        bits_layer(net, 2, (1300, 16), 8, 256),
        bits_layer(net, 5, (200, 20), 8, 64, zero="packed"),
    ]
    data = net.model(outputs, opset=21)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    check(data, net.inputs, session.run(None, net.inputs))
    assert set("+".join(lowered(data)).split("+")) == {"qnn.weight_only_dense", "nn.bias_add"}


def test_rows_of_a_packed_table_are_those_of_onnx_runtime() -> None:
    net = Network()
    outputs = []
    for kind, width, block in (("int4", 35, 16), ("uint4", 64, 32), ("bytes", 96, 32), ("uint8", 96, 32)):
        blocks = -(-width // block)
        if kind in DTYPES:
            codes = RNG.integers(-8 if kind == "int4" else 0, 8, (40, width)).astype(DTYPES[kind])
            zero = RNG.integers(0, 8, (40, blocks)).astype(DTYPES[kind])
        else:
            codes = RNG.integers(0, 256, (40, width // 2 if kind == "bytes" else width), np.uint8)
            zero = RNG.integers(0, 256, (40, -(-blocks // 2) if kind == "bytes" else blocks), np.uint8)
        for has_zero in (True, False):
            names = [net.constant(codes), net.data(2, 3, high=40)]
            names.append(net.constant(RNG.uniform(0.01, 0.1, (40, blocks)).astype(np.float32)))
            names += [net.constant(zero)] if has_zero else []
            bits = 8 if kind == "uint8" else 4
            outputs.append(net.node("GatherBlockQuantized", names, MICROSOFT, block_size=block, bits=bits))
    data = net.model(outputs, opset=21)
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    check(data, net.inputs, session.run(None, net.inputs), 0)
    assert [name for name in lowered(data) if "quant" in name] == []


def test_layers_on_dequantized_constants_are_those_of_onnx() -> None:
    net = Network()
    outputs = []
    for dtype, rows, sizes in (
        ("int4", 1, (67, 20)),
        ("uint4", 6, (67, 18)),
        ("int2", 2, (130, 16)),
        ("uint2", 1, (130, 19)),
    ):
        for block in (0, 16, 24):
            weights = net.dequantized(sizes, dtype, axis=0 if block else 1, block=block, zero=block != 16)
            outputs.append(net.node("MatMul", [net.data(rows, sizes[0]), weights]))
    turned = net.dequantized((30, 64), "int4", axis=1, block=32, zero=True)
    outputs.append(net.node("Gemm", [net.data(2, 64), turned, net.constant(np.ones(30, np.float32))], transB=1))
    outputs.append(net.node("MatMul", [net.data(2, 3, 64), net.node("Transpose", [turned], perm=[1, 0])]))
    outputs.append(net.node("Gather", [turned, net.data(5, high=30)], axis=0))
    for dtype in ("int8", "uint8"):
        weights = net.dequantized((40, 24), dtype, axis=1, zero=True)
        outputs.append(net.node("MatMul", [net.data(3, 40), weights]))
        kernel = net.dequantized((20, 6, 3, 3), dtype, axis=0, zero=True)
        padded = {"pads": [1, 1, 1, 1], "strides": [2, 2]}
        outputs.append(
            net.node("Conv", [net.data(1, 6, 9, 7), kernel, net.constant(np.ones(20, np.float32))], **padded)
        )
    grouped = net.dequantized((18, 5, 3, 3), "int4", axis=0, zero=True)
    outputs.append(net.node("Conv", [net.data(1, 10, 6, 6), grouped], group=2))
    pointwise = net.dequantized((17, 70, 1, 1), "int4", axis=None, zero=False)
    outputs.append(net.node("Conv", [net.data(1, 70, 3, 5), pointwise]))
    outputs.append(net.node("Conv", [net.data(2, 40, 11), net.dequantized((16, 40, 3), "uint4", axis=0, zero=True)]))
    first = net.dequantized((24, 3, 5, 5), "int8", axis=0, zero=False)
    outputs.append(net.node("Conv", [net.data(1, 3, 12, 12), first]))
    data = net.model(outputs)
    expected = ReferenceEvaluator(onnx.load_model_from_string(data)).run(None, net.inputs)
    check(data, net.inputs, expected)
    kept = "+".join(lowered(data)).split("+")
    assert "qnn.dequantize" not in kept
    assert "qnn.dequantize_blocks" not in kept
    assert not {"nn.dense", "nn.conv1d", "nn.conv2d", "take"} & set(kept)


def test_what_packing_does_not_take_is_dequantized_as_before() -> None:
    net = Network()
    infinite = net.dequantized((40, 40), "int4", axis=1, zero=False)
    net.constants[net.nodes[-1].input[1]][3] = np.inf
    cases = {
        "few": net.node("MatMul", [net.data(2, 8), net.dequantized((8, 8), "int8", axis=1, zero=True)]),
        "along": net.node("MatMul", [net.data(2, 40), net.dequantized((40, 40), "int4", axis=0, zero=False)]),
        "blocks": net.node("MatMul", [net.data(2, 40), net.dequantized((40, 40), "int4", axis=1, block=20, zero=True)]),
        "narrow": net.node("MatMul", [net.data(2, 40), net.dequantized((40, 40), "int8", axis=0, block=4, zero=True)]),
        "infinite": net.node("MatMul", [net.data(2, 40), infinite]),
        "thin": net.node("Conv", [net.data(1, 64, 4, 4), net.dequantized((64, 1, 3, 3), "int8", axis=0, zero=False)],
                         group=64),
        "columns": net.node("Gather", [net.dequantized((40, 40), "int8", axis=0, zero=False), net.data(3, high=40)],
                            axis=1),
        "read": net.node("Add", [net.data(40, 40), net.dequantized((40, 40), "int8", axis=0, zero=False)]),
    }  # fmt: skip
    data = net.model(list(cases.values()))
    assert not [name for name in lowered(data) if "weight_only" in name]
    expected = ReferenceEvaluator(onnx.load_model_from_string(data)).run(None, net.inputs)
    found = mlfc.compile(data, target="llvm").run(net.inputs)
    for ours, theirs in zip(found.values(), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("bits", "target"), [(2, "llvm"), (4, "llvm"), (8, "llvm"), (4, "c -mcpu=cortex-m4")])
def test_packed_weights_are_packed_in_the_archive_and_in_memory(bits: int, target: str, tmp_path: Path) -> None:
    net = Network()
    output = bits_layer(net, 4, (256, 64), bits, 32, zero="packed")
    data = net.model([output], opset=21)
    weights, scales = 256 * 64 * bits // 8, 4 * 8 * 64
    for executor in ("aot", "graph"):
        model = mlfc.compile(data, target=target, executor=executor, module_name="m")
        model.export(tmp_path / f"{executor}.tar")
        (memory,) = (item["memory"] for item in model.inspect()["modules"].values())
        assert weights + scales <= memory["constants_bytes"] <= weights + scales + 8 * 64 + 64
        assert memory["workspace_bytes"] <= 64
        own = model.factory.params
        assert sum(value.nbytes for value in own.values()) <= weights + scales + 8 * 64
        again = mlfc.load(tmp_path / f"{executor}.tar").run(net.inputs)
        np.testing.assert_allclose(next(iter(again.values())), next(iter(model.run(net.inputs).values())), atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"bits": 3}, "with bits=3 is not supported"),
        ({"block_size": 1 << 40}, "expected B of shape"),
        ({"block_size": 24}, "expected a block_size that is a power of 2 and at least 16, got 24"),
        ({"block_size": 0}, "at least 16, got 0"),
        ({"K": 1 << 32}, "data of shape"),
        ({"N": 1 << 32}, "expected B of shape"),
        ({"N": -1}, "do not fit K=64 and N=-1"),
        ({"b": np.zeros((40, 2, 15), np.uint8)}, "expected B of shape \\(40, 2, 16\\), got \\(40, 2, 15\\)"),
        ({"b": np.zeros((40, 2, 16), np.int8)}, "expected B of uint8, got int8"),
        ({"s": np.zeros(79, np.float32)}, "expected scales of shape"),
        ({"z": np.zeros(41, np.uint8)}, "expected zero points of shape"),
        ({"z": np.zeros(79, np.float32)}, "expected zero points of shape"),
        ({"z": np.zeros(80, np.int32)}, "expected zero points of uint8 or like the data, got int32"),
        ({"g": np.arange(64, dtype=np.int32)[::-1].copy()}, "g_idx that is not in order"),
        ({"g": np.zeros(3, np.int32)}, "g_idx that is not in order"),
        ({"g": np.arange(64) // 32, "z": np.zeros(40, np.uint8)}, "with both a g_idx and zero points is not supported"),
    ],
)
def test_malformed_packed_weights_are_refused(changes: dict[str, Any], fault: str) -> None:
    values: dict[str, Array] = {"b": np.zeros((40, 2, 16), np.uint8), "s": np.ones(80, np.float32)}
    attributes = {"K": 64, "N": 40, "bits": 4, "block_size": 32}
    for name, value in changes.items():
        (attributes if name in attributes else values)[name] = value
    net = Network()
    names = [net.data(2, 64), *(net.constant(values[name]) if name in values else "" for name in "bszg")]
    data = net.model([net.node("MatMulNBits", names, MICROSOFT, **attributes)], opset=21)
    with pytest.raises(mlfc.errors.MlfcError, match=fault):
        mlfc.import_model(data)


@pytest.mark.parametrize(
    ("attributes", "zero", "fault"),
    [
        ({"block_size": -1}, (2, 48), "block_size is -1"),
        ({"block_size": 32}, (3, 48), "do not fit blocks of 32"),
        ({"block_size": 32}, (48, 2), "do not fit blocks of 32"),
        ({"block_size": 33}, (2, 48), "^$"),
        ({"block_size": 1 << 40}, (2, 48), "do not fit blocks of 1099511627776"),
        ({"block_size": 32, "axis": 2}, (2, 48), "axis 2 is outside"),
    ],
)
def test_malformed_blocks_are_refused(attributes: dict[str, int], zero: tuple[int, int], fault: str) -> None:
    net = Network()
    parts = [np.zeros((64, 48), ml_dtypes.int4), np.ones((2, 48), np.float32), np.zeros(zero, ml_dtypes.int4)]
    names = [net.constant(part) for part in parts]
    weights = net.node("DequantizeLinear", names, **{"axis": 0, **attributes})
    data = net.model([net.node("MatMul", [net.data(2, 64), weights])])
    if fault == "^$":  # the last block may be shorter
        assert lowered(data) == ["qnn.weight_only_dense"]
        return
    with pytest.raises(mlfc.errors.MlfcError, match=fault):
        mlfc.import_model(data)


def test_a_table_of_bytes_whose_blocks_do_not_fit_is_refused() -> None:
    codes, scales = np.zeros((40, 32), np.uint8), np.ones((40, 2), np.float32)
    for changes, fault in (
        ({"bits": 3}, "with bits=3 is not supported"),
        ({"block_size": 8}, "at least 16, got 8"),
        ({"quantize_axis": 0}, "quantize_axis of packed bytes must be the last one"),
        ({"block_size": 64}, "expected scales of shape"),
        ({"gather_axis": 5}, "axis 5 is outside"),
    ):
        net = Network()
        names = [net.constant(codes), net.data(3, high=40), net.constant(scales)]
        node = net.node("GatherBlockQuantized", names, MICROSOFT, **{"block_size": 32, **changes})
        with pytest.raises(mlfc.errors.MlfcError, match=fault):
            mlfc.import_model(net.model([node], opset=21))


def test_operators_on_packed_weights_refuse_what_does_not_fit() -> None:
    data, empty = (ir.Var("x", ir.TensorType(shape, "float32")) for shape in ((2, 37), (0, 37)))
    codes, scale, zero = (ir.const(np.ones(shape), dtype) for shape, dtype in (((5, 37), "int8"), ((5, 4), "float32"),
                                                                                ((5, 4), "int32")))  # fmt: skip
    dense: dict[str, Any] = {"units": 5, "block_size": 10}
    for args, attrs, fault in (
        ((data, codes, scale, zero), {**dense, "block_size": 37}, "expected scales and zero points that fit"),
        ((data, codes, scale, zero), {**dense, "block_size": -3}, "block_size of at least 0"),
        ((data, codes, scale, zero), {**dense, "units": 6}, "units=6"),
        ((data, codes, zero, zero), dense, "scale of float32"),
        ((data, scale, scale, zero), dense, "weights of int8"),
        ((empty, codes, scale, zero), dense, "expected tensors with elements"),
    ):
        with pytest.raises(mlfc.errors.TypeCheckError, match=fault):
            ir.call("qnn.weight_only_dense", args, attrs)
    packed = ir.Var("p", ir.TensorType((3, 9), "uint8"))
    for given, fault in ((19, "9 bytes hold 18 numbers, not 19"), (-1, "not -1")):
        with pytest.raises(mlfc.errors.TypeCheckError, match=fault):
            ir.call("qnn.unpack", [packed], out_dtype="int4", extent=given)
