"""ONNX's own node tests of all supported operators, compiled and compared with the expected outputs.

Many small models are merged into one module per group, so that compilers run only a few times. Every other group is
compiled to C, the rest by LLVM, half of them for the graph executor. An operator's tests are in both kinds of groups,
and tests/native compares each operator's C with LLVM's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import compose, numpy_helper

import mlfc
from mlfc.errors import MlfcError
from mlfc.frontend.onnx import table
from mlfc.relay import ir
from mlfc.support.dtypes import is_narrow
from tests.harness import compiled, loaded_by_llvm
from tests.node_tests import node_tests

Array = npt.NDArray[Any]

# tests/native compiles each operator with the flags of libraries
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
GROUPS = 12

# Inputs that ONNX allows to be computed but that are constants in most models: the tests' values become constants. Each
# test also runs unchanged if the declared shapes of its outputs suffice.
FIXED = {
    **dict.fromkeys(("CenterCropPad", "CumProd", "CumSum", "Expand", "OneHot", "Reshape", "Squeeze", "Split"), (1,)),
    **dict.fromkeys(("Tile", "Unsqueeze", "Upsample"), (1,)),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean"), (1,)),
    **dict.fromkeys(("ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare"), (1,)),
    "AffineGrid": (1,),
    **dict.fromkeys(("BlackmanWindow", "ConstantOfShape", "HammingWindow", "HannWindow"), (0,)),
    "Conv": (1,),
    "Col2Im": (1, 2),
    "ConvInteger": (1, 2, 3),
    "ConvTranspose": (1,),
    "DFT": (1, 2),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "MatMulInteger": (2, 3),
    "MaxUnpool": (2,),
    "MelWeightMatrix": (0, 1, 2, 3, 4),
    "NonZero": (0,),
    "Pad": (1, 3),
    "QLinearConv": (1, 2, 3, 4, 5, 6, 7),
    "QLinearMatMul": (1, 2, 4, 5, 6, 7),
    "QuantizeLinear": (1, 2),
    "Range": (0, 1, 2),
    "Resize": (1, 2, 3),
    "STFT": (1, 3),
    "Slice": (1, 2, 3, 4),
    "TopK": (1,),
    "Unique": (0,),
}
# Operators whose declared output shapes do not suffice: scales and regions, window sizes, counts of nonzero elements.
ASKED = {
    "AffineGrid", "BlackmanWindow", "Col2Im", "ConvInteger", "DFT", "DequantizeLinear", "Dropout", "HammingWindow",
    "HannWindow", "MelWeightMatrix", "NonZero", "QLinearConv", "QuantizeLinear", "Resize", "STFT", "Unique",
    "Upsample",
}  # fmt: skip
# Every operator of a composed node rounds to a narrow dtype; the expected outputs are rounded once.
COARSE = {"bfloat16": 2**-6, "float16": 2**-9}
# Reasons to skip tests of supported operators -> parts of their names.
SKIPPED = {
    "no strings, optionals or sequences": (
        "STRING",
        "_string",
        "_opt",
        "_sequence",
        "label_encoder_tensor",
    ),
    "random": ("training_dropout_default", "training_dropout_mask", "training_dropout ", "bernoulli"),
    "opset 1": ("test_not_",),
    "takes the size before rounding, PyTorch and ONNX Runtime the size after it": (
        "downsample_scales_cubic_align_corners",
        "downsample_scales_linear_align_corners",
    ),
}


@dataclass(frozen=True)
class Case:
    """A node test whose run-time inputs have unique names."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Array]
    outputs: list[Array]
    rtol: float
    atol: float


def _array(value: Any) -> Array | None:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, (np.ndarray, np.generic)) else None


def _case(prefix: str, source: Any, fixed: set[str]) -> Case | None:
    """Return the test with the inputs in `fixed` as initializers; None if its data are not tensors."""
    inputs, outputs = ([_array(value) for value in values] for values in source.data_sets[0])
    if any(value is None for value in (*inputs, *outputs)):
        return None
    model = onnx.ModelProto()
    model.CopyFrom(source.model)
    kept = {}
    for info, value in zip(list(model.graph.input), inputs, strict=True):
        if info.name in fixed:
            model.graph.initializer.append(numpy_helper.from_array(value, info.name))
            model.graph.input.remove(info)
        else:
            kept[info.name] = value
    # only on the main graph, as names inside functions are local
    model = compose.add_prefix(model, prefix)
    renamed = {prefix + name: value for name, value in kept.items()}
    return Case(source.name, model, renamed, outputs, source.rtol, source.atol)


@cache
def claimed() -> tuple[Case, ...]:
    """Return the tests of the supported operators, without those in SKIPPED."""
    operators_of = cache(lambda domain: frozenset(table.supported(domain)))
    found: list[Case | None] = []
    for index, source in enumerate(node_tests()):
        operators = {(table.normal_domain(node.domain), node.op_type) for node in source.model.graph.node}
        ours = all(operator in operators_of(domain) for domain, operator in operators)
        skipped = any(part in f"{source.name} " for parts in SKIPPED.values() for part in parts)
        if ours and not source.name.endswith("_expanded") and not skipped:
            fixed = {
                name
                for node in source.model.graph.node
                for position, name in enumerate(node.input)
                if position in FIXED.get(node.op_type, ())
            } & {item.name for item in source.model.graph.input}
            found.append(_case(f"c{index}_", source, fixed))
            if fixed and not ASKED & {operator for _, operator in operators}:
                found.append(_case(f"as_is{index}_", source, set()))
    return tuple(sorted((case for case in found if case is not None), key=lambda case: case.name))


def _merged(cases: list[Case]) -> tuple[ir.IRModule, dict[str, Array], list[tuple[Case, int]]]:
    """Return a module of all cases, its parameters, and each case's first output; fail if one is not imported."""
    variables: list[ir.Var] = []
    bodies: list[ir.Expr] = []
    names: list[str] = []
    params: dict[str, Array] = {}
    places, refused = [], []
    for case in cases:
        try:
            module, weights = mlfc.import_model(case.model.SerializeToString(), name=case.name)
        except MlfcError as error:
            refused.append(f"{case.name}: {error}")
            continue
        variables += module.main.params
        params |= weights
        body = module.main.body
        places.append((case, len(bodies)))
        bodies += body.fields if isinstance(body, ir.Tuple) else (body,)
        names += module.output_names
    assert not refused, "\n".join(refused)
    main = ir.Function(tuple(variables), ir.Tuple(tuple(bodies)))
    return ir.IRModule({"main": main}, tuple(names)), params, places


def _differences(case: Case, results: list[Array]) -> Iterator[str]:
    for result, expected in zip(results, case.outputs, strict=True):
        if result.shape != expected.shape or result.dtype != expected.dtype:
            yield f"{case.name}: {result.dtype}{result.shape} instead of {expected.dtype}{expected.shape}"
        elif is_narrow(expected.dtype.name):  # coarse enough to be equal
            if not np.array_equal(result.astype(np.float32), expected.astype(np.float32), equal_nan=True):
                yield f"{case.name}: {result} instead of {expected}"
        elif expected.dtype.kind in "fV":
            wide = result.astype(np.float64), expected.astype(np.float64)
            rtol = max(case.rtol, COARSE.get(str(expected.dtype), 0.0))
            if not np.allclose(*wide, rtol=rtol, atol=max(case.atol, 1e-6), equal_nan=True):
                yield f"{case.name}: differs by {np.nanmax(np.abs(wide[0] - wide[1]))}"
        elif not np.array_equal(result, expected):
            yield f"{case.name}: {np.sum(result != expected)} of {expected.size} differ"


def test_so_many_tests_are_claimed(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"ONNX node tests claimed: {len(claimed())}")  # noqa: T201  (the count is what readers look for)
    assert len(claimed()) > 1000


@pytest.mark.parametrize("group", range(GROUPS))
def test_node_tests_give_the_expected_outputs(group: int, tmp_path: Path) -> None:
    module, params, places = _merged(list(claimed()[group::GROUPS]))
    if group % 2:
        loaded = loaded_by_llvm(module, params, executor="graph" if group % 4 == 1 else "aot")
    else:
        loaded = compiled(module, params, tmp_path, by_llvm=False)
    inputs = {name: value for case, _ in places for name, value in case.inputs.items()}
    results = list(loaded.run(inputs).values())
    faults = [
        fault for case, first in places for fault in _differences(case, results[first : first + len(case.outputs)])
    ]
    assert not faults, "\n".join(faults)
