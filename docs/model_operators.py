"""The pages of model operators: measured by importing one-node models, and from the importers' tables.

``docs/generate.py`` writes them. A dtype is listed if a model of one node with it is imported.
"""

from __future__ import annotations

import itertools
import json
import re
import string
import sys
import textwrap
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tflite
from onnx import TensorProto, defs, helper, numpy_helper

import mlfc
from mlfc.errors import MlfcError
from mlfc.frontend.onnx import table
from mlfc.frontend.onnx.tensors import DTYPES
from mlfc.frontend.tflite.importer import _instead
from mlfc.frontend.tflite.node import CONVERTERS
from mlfc.frontend.tflite.variables import OPERATORS as VARIABLE_OPERATORS
from mlfc.relay import ir
from mlfc.relay.op import Operator
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes

# the cases that are compared with LiteRT are tests
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.tflite_builder import DTYPES as TFLITE_DTYPES
from tests.tflite_builder import Op, T, build
from tests.tflite_cases import Case, float_cases, quantized_cases
from tests.tflite_sweep import FILE as SWEEP

_DOMAINS = {"": "ai.onnx", table.ML: table.ML, table.MICROSOFT: table.MICROSOFT}
_OPSETS = {"": table.NEWEST_OPSET, table.ML: 5, table.MICROSOFT: 1}
# imported by the importer itself
_GRAPHS = ("If", "Loop")
_SHAPES = ((1, 2, 4, 4), (2, 4), (4,), (), (1, 2, 3), (1, 2, 4, 4, 4))
_CODES = {f"tensor({name.lower()})": code for name, code in TensorProto.DataType.items()} | {
    "tensor(float)": TensorProto.FLOAT, "tensor(double)": TensorProto.DOUBLE,
}  # fmt: skip
_EXACT = "exact"
_WORDS_OF_A_FOOTNOTE = 5
_TYPES = tuple(name for name in TFLITE_DTYPES if name != "resource")
_VARIED = 2  # number of an operator's cases that are also tried with other types
_QUANTIZED = ("int8", "uint8", "int16")
_FAMILIES = {"floats": dtypes.FLOATS, "integers": dtypes.INTEGERS, "narrow": dtypes.NARROW}
_TFLITE_FAMILIES = {
    "floats": ("float16", "float32"),
    "integers": ("int8", "int16", "int32", "int64", "uint8", "uint32", "uint64"),
    "quantized": tuple(f"quantized {name}" for name in _QUANTIZED),
}


@dataclass(frozen=True)
class Form:
    """Input shapes and attributes for a node of an operator, and the inputs that are constants (ones)."""

    shapes: Sequence[tuple[int, ...]]
    constants: Collection[int] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)


_IMAGE, _CHANNELS = (1, 2, 4), (2,)
# for operators that no general form fits
_FORMS = {
    "AffineGrid": Form([(1, 2, 3), (4,)], {1}),
    "BatchNormalization": Form([_IMAGE, *[_CHANNELS] * 4]),
    "BitShift": Form([(2,), (2,)], (), {"direction": "LEFT"}),
    "BlackmanWindow": Form([()], {0}),
    "Col2Im": Form([(1, 2, 1), (2,), (2,)], {1, 2}),
    "ConstantOfShape": Form([(1,)], {0}),
    "ConvTranspose": Form([_IMAGE, (2, 1, 3)]),
    "DFT": Form([(1, 4, 1)]),
    "DeformConv": Form([(1, 1, 3, 3), (1, 1, 2, 2), (1, 8, 2, 2)]),
    "GRU": Form([(3, 1, 2), (1, 6, 2), (1, 6, 2)], {1, 2}, {"hidden_size": 2}),
    "Gemm": Form([(2, 3), (3, 4)]),
    "GridSample": Form([(1, 1, 3, 3), (1, 2, 2, 2)]),
    "GroupNormalization": Form([_IMAGE, _CHANNELS, _CHANNELS], (), {"num_groups": 1}),
    "HammingWindow": Form([()], {0}),
    "HannWindow": Form([()], {0}),
    "InstanceNormalization": Form([_IMAGE, _CHANNELS, _CHANNELS]),
    "LSTM": Form([(3, 1, 2), (1, 8, 2), (1, 8, 2)], {1, 2}, {"hidden_size": 2}),
    "NonMaxSuppression": Form([(1, 4, 4), (1, 1, 4), (1,)], {2}),
    "NonZero": Form([(2,)], {0}),
    "OneHot": Form([(2,), (), (2,)], {1, 2}),
    "QLinearConv": Form([(1, 1, 3, 3), (), (), (1, 1, 2, 2), (), (), (), ()], {1, 2, 3, 4, 5, 6, 7}),
    "QLinearMatMul": Form([(2, 3), (), (), (3, 2), (), (), (), ()], {1, 2, 4, 5, 6, 7}),
    "RNN": Form([(3, 1, 2), (1, 2, 2), (1, 2, 2)], {1, 2}, {"hidden_size": 2}),
    "Range": Form([(), (), ()], {0, 1, 2}),
    "ReverseSequence": Form([(2, 3), (3,)]),
    "RotaryEmbedding": Form([(1, 2, 2, 4), (1, 2, 2), (1, 2, 2)]),
    "ArrayFeatureExtractor": Form([(1, 4), (1,)], {1}),
    "Scaler": Form([(1, 2)], (), {"offset": [1.0], "scale": [1.0]}),
    "Imputer": Form([(1, 2)], (), {"imputed_value_floats": [1.0], "replaced_value_float": 0.0}),
    "LinearClassifier": Form([(1, 2)], (), {"coefficients": [1.0] * 4, "classlabels_ints": [0, 1]}),
    "LinearRegressor": Form([(1, 2)], (), {"coefficients": [1.0, 1.0]}),
    "OneHotEncoder": Form([(2,)], (), {"cats_int64s": [0, 1]}),
    "FeatureVectorizer": Form([(1, 2)], (), {"inputdimensions": [2]}),
}  # fmt: skip


def onnx_page(made: str) -> str:
    """Return the page of ONNX's operators."""
    lines = [made, "", "# ONNX operators", ""]
    lines += [
        f"Opsets {table.OLDEST_OPSET} to {table.NEWEST_OPSET} of `ai.onnx`; each form of an operator is imported with",
        "its own meaning. The dtypes are those of the first input with which a node is imported, measured",
        "with models of one node, whose other inputs have the same dtype where they may. The contract is",
        "that of the [operators](operators.md) that the node becomes, empty where each is exact, bit for",
        "bit, or correctly rounded. With float16 and bfloat16, each of them rounds. [`mlfc",
        "check`](cli.md#check) suggests remedies for a model that is refused.",
        "",
        *textwrap.wrap(_families(_FAMILIES), 100, break_on_hyphens=False),
        "",
    ]
    for domain, title in _DOMAINS.items():
        names = supported(domain)
        if domain == table.MICROSOFT:
            lines += [f"## {title}", "", *_unmeasured(names), ""]
            continue
        lines += [f"## {title}", "", "| operator | dtypes | contract |", "|---|---|---|"]
        measured_ones = [name for name in names if name not in _GRAPHS and measured(domain, name)[0]]
        lines += [_onnx_row(domain, name) for name in measured_ones]
        lines += ["", *_unmeasured(sorted({*names} - {*measured_ones})), ""]
    lacking = [(domain, name) for domain, name in sorted(_history()) if name not in supported(domain)]
    advice = {table.qualified(domain, name): table.advice(domain, name) for domain, name in lacking}
    return "\n".join([*lines, *_unsupported(advice), ""])


def _unsupported(advice: Mapping[str, str | None]) -> list[str]:
    """Return the section of operators that are not supported, with the advice on each that is not on similar names."""
    similar = re.compile("Similar supported|Supported|Replace it|Export it as")
    general = [name for name, text in advice.items() if not text or similar.match(text)]
    lines = ["## Not supported", "", "| operator | instead |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in advice.items() if name not in general]
    others = f"Others: {', '.join(f'`{name}`' for name in general)}."
    return [*lines, "", *textwrap.wrap(others, 100, break_on_hyphens=False, break_long_words=False)]


def _families(families: Mapping[str, Collection[str]]) -> str:
    return "; ".join(f"*{name}*: {', '.join(kinds)}" for name, kinds in families.items()) + "."


def _unmeasured(names: Sequence[str]) -> list[str]:
    """Return the lines that list operators that are not measured."""
    listed = ", ".join(f"`{name}`" for name in names)
    text = f"Imported, too, but not measured with a single node: {listed}."
    return textwrap.wrap(text, 100, break_on_hyphens=False, break_long_words=False)


def supported(domain: str) -> list[str]:
    """Return the operators of a domain that are imported."""
    return sorted({*table.supported(domain), *(() if domain else _GRAPHS)})


def _onnx_row(domain: str, name: str) -> str:
    kinds, contract = measured(domain, name)
    return f"| `{name}` | {_listed(kinds, _FAMILIES) or '-'} | {'' if contract == _EXACT else contract} |"


def _listed(kinds: Iterable[str], families: Mapping[str, Collection[str]]) -> str:
    """Return abbreviated dtypes, in which a name stands for a family."""
    rest = list(kinds)
    found = []
    for name, family in families.items():
        if {*family} <= {*rest}:
            found.append(name)
            rest = [kind for kind in rest if kind not in family]
    return ", ".join([*found, *rest])


@cache
def _history() -> dict[tuple[str, str], list[int]]:
    """Return the opsets in which ONNX's operators changed, up to the newest that is imported."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        newest = _OPSETS.get(schema.domain)
        if newest is not None and schema.since_version <= newest:
            found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return {key: sorted(versions) for key, versions in found.items()}


@cache
def measured(domain: str, name: str) -> tuple[tuple[str, ...], str]:
    """Return the dtypes with which a node of an operator is imported, and the accuracy contract of its result."""
    if (domain, name) not in _history():
        return (), ""
    schema = defs.get_schema(name, _history()[domain, name][-1], domain)
    first = _types(schema, 0)
    codes = [code for code in first if code in DTYPES] or [0]
    likely = sorted(codes, key=lambda code: code not in (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT8))
    for code in likely[:3]:
        for form in _forms(schema):
            module = _imported(schema, form, code)
            if module is not None:
                kinds = [DTYPES[other] for other in codes if other and _imported(schema, form, other) is not None]
                return tuple(kinds), _contract(module)
    return (), ""


def _types(schema: defs.OpSchema, position: int) -> list[int]:
    """Return the element types that an operator's input may have."""
    if not schema.inputs:
        return []
    parameter = schema.inputs[min(position, len(schema.inputs) - 1)]
    return sorted(_CODES[text] for text in parameter.types if text in _CODES)


def _forms(schema: defs.OpSchema) -> Iterator[Form]:
    """Yield candidate forms, the simplest first."""
    if schema.name in _FORMS:
        yield _FORMS[schema.name]
        return
    least, most = schema.min_input, min(schema.max_input, 4)
    counts = sorted({least, max(least, 1), most}) if schema.inputs else [0]
    for count, shape, constant in itertools.product(counts, _SHAPES, (False, True)):
        if constant and count < 2:
            continue
        for attributes in _attributes(schema):
            for other in (shape, (), (len(shape),), (1,)) if constant else (shape,):
                yield Form([shape, *[other] * (count - 1)][:count], range(1, count) if constant else (), attributes)


def _attributes(schema: defs.OpSchema) -> Iterator[dict[str, Any]]:
    kinds = defs.OpSchema.AttrType
    plain = {
        kinds.INT: 1, kinds.FLOAT: 1.0, kinds.STRING: "", kinds.FLOATS: [1.0], kinds.STRINGS: ["a"],
        kinds.TENSOR: numpy_helper.from_array(np.ones(1, np.float32)),
    }  # fmt: skip
    required = {name: item.type for name, item in schema.attributes.items() if item.required}
    for extents in ([1, 1], [1]) if kinds.INTS in required.values() else ([],):
        yield {name: extents if kind == kinds.INTS else plain.get(kind) for name, kind in required.items()}


def _imported(schema: defs.OpSchema, form: Form, code: int) -> ir.IRModule | None:
    """Return the module of a model of one node; None if it is rejected."""
    names = [f"x{index}" for index in range(len(form.shapes))]
    inputs, weights = [], []
    first = schema.inputs[0].type_str if schema.inputs else ""
    for index, (name, shape) in enumerate(zip(names, form.shapes, strict=True)):
        parameter = schema.inputs[min(index, len(schema.inputs) - 1)]
        kinds = _types(schema, index)
        if index == 0 or parameter.type_str == first:
            kind = code
        else:
            kind = next((item for item in (code, TensorProto.INT64, TensorProto.FLOAT) if item in kinds), kinds[0])
        if index in form.constants:
            dtype = helper.tensor_dtype_to_np_dtype(kind)
            weights.append(numpy_helper.from_array(np.ones(shape, dtype), name))
        else:
            inputs.append(helper.make_tensor_value_info(name, kind, shape))
    outputs = [f"y{index}" for index in range(max(schema.min_output, 1))]
    try:
        node = helper.make_node(schema.name, names, outputs, domain=schema.domain, **form.attributes)
        graph = helper.make_graph([node], "one", inputs, [onnx.ValueInfoProto(name=name) for name in outputs], weights)
        versions = {"": table.NEWEST_OPSET, schema.domain: _OPSETS[schema.domain]}
        opsets = [helper.make_opsetid(*item) for item in versions.items()]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return mlfc.import_model(helper.make_model(graph, opset_imports=opsets))[0]
    except (MlfcError, ValueError, TypeError, KeyError):
        return None


def _contract(module: ir.IRModule) -> str:
    """Return the contract of the operators of a module: exact, or that of the inexact ones."""
    used = [item.op for item in post_order(module.main.body) if isinstance(item, ir.Call)]
    loose = sorted({op.name for op in used if isinstance(op, Operator) and not _is_exact(op)})
    return f"as {', '.join(f'`{name}`' for name in loose)}" if loose else _EXACT


def _is_exact(operator: Operator) -> bool:
    return operator.contract.startswith(("exact", "bit-exact", "correctly rounded", "an integer by zero"))


def tflite_page(made: str) -> str:
    """Return the page of TFLite's operators."""
    lines = [made, "", "# TFLite operators", ""]
    lines += [
        "The dtypes are those of the first input with which an operator is imported, measured with models of",
        "one operator. Integer results are those of LiteRT's reference kernels bit for bit, or of TFLite",
        "Micro's with `--numerics tflm`. The third column has the accuracy in float32: of the tests against",
        "LiteRT, as a part of the largest magnitude, or by the contract of the [operators](operators.md)",
        "that the operator becomes, empty where each is exact or correctly rounded. The last has the dtypes",
        "in which results [equal LiteRT's](#compared-with-litert), where they are not those of the second.",
        "[`mlfc check`](cli.md#check) suggests remedies for a model that is refused.",
        "",
        *textwrap.wrap(_families(_TFLITE_FAMILIES), 100, break_on_hyphens=False),
        "",
    ]
    record = json.loads(SWEEP.read_text(encoding="utf-8"))["kinds"]
    compared = {code: _listed(sorted(kinds), _TFLITE_FAMILIES) for code, kinds in record.items()}
    listed = {
        code: _listed(kinds, _TFLITE_FAMILIES)
        for code in imported_codes()
        if (kinds := sorted({*measured_tflite(code)[0], *record.get(code, ())}))
    }
    sets = common_texts([*listed.values(), *compared.values()])
    lines += ["| set | dtypes |", "|---|---|", *(f"| [{letter}] | {text} |" for text, letter in sets.items()), ""]
    lines += ["| operator | dtypes | float32 | equal to LiteRT |", "|---|---|---|---|"]
    for code, text in listed.items():
        equal = compared.get(code, "-")
        shown = [f"[{sets[item]}]" if item in sets else item for item in (text, "" if equal == text else equal)]
        floats = measured_tflite(code)[1]
        lines.append(f"| `{code}` | {shown[0]} | {'' if floats == _EXACT else floats or '-'} | {shown[1]} |")
    lines += ["", *_unmeasured(sorted({*imported_codes()} - {*listed}))]
    names = sorted(name for name, value in vars(tflite.BuiltinOperator).items() if isinstance(value, int))
    known = {*imported_codes(), "CUSTOM", "DELEGATE", "PLACEHOLDER_FOR_GREATER_OP_CODES"}
    lines += ["", *_unsupported({name: _instead(name) for name in names if name not in known})]
    return "\n".join([*lines, "", *_compared(), ""])


def common_texts(texts: Iterable[str]) -> dict[str, str]:
    """Return a letter for each long text that occurs several times in a table."""
    counts = Counter(texts)
    common = [text for text, count in counts.items() if count > 1 and len(text.split()) >= _WORDS_OF_A_FOOTNOTE]
    return dict(zip(common, string.ascii_letters, strict=False))


def _compared() -> list[str]:
    """Return the lines on the comparison with LiteRT, from the record that the sweep writes."""
    record = json.loads(SWEEP.read_text(encoding="utf-8"))
    reasons = "; ".join(f"{count} with {reason}" for reason, count in record["left_out"].items())
    refused = sorted({item.split(" ")[0] for item in record["other"]})
    text = (
        f"`python -m tests.tflite_sweep` builds models of one operator in every dtype and runs those that LiteRT's "
        f"reference kernels run. mlfc gives the same integers, and floats as near as they are to float32 or float16, "
        f"in {record['equal']:,} of {record['run']:,}. The others are of operators that are not supported "
        f"({', '.join(refused)}). Not counted are models of which LiteRT's results mean nothing: {reasons}. Recurrent "
        f"operators, variables, control flow and signal operators have tests of their own."
    )
    return ["## Compared with LiteRT", "", *textwrap.wrap(text, 100, break_on_hyphens=False, break_long_words=False)]


def imported_codes() -> list[str]:
    """Return the operators of TFLite that are imported."""
    return sorted({*CONVERTERS, *VARIABLE_OPERATORS})


@cache
def measured_tflite(code: str) -> tuple[tuple[str, ...], str]:
    """Return the types with which an operator is imported, and the accuracy of its results in float32."""
    found: dict[str, str] = {}
    tolerances = []
    for number, case in enumerate(_cases().get(code, ())):
        main = next((tensor for tensor in case.tensors if tensor.value is None), case.tensors[0])
        for tensors in (case.tensors, *(_variants(case, main) if number < _VARIED else ())):
            kind = _kind_of(next(tensor for tensor in tensors if tensor.name == main.name))
            module = _accepted(tensors, case.op, case.inputs) if kind not in found else None
            if module is not None:
                found[kind] = _contract(module)
        tolerances += [case.tolerance] if main.dtype == "float32" else []
    if not found:
        found = dict(_of_plain_forms(code))
    floats = found.get("float32", "")
    if any(tolerances) and floats != _EXACT:
        floats = f"within {max(tolerances):g}"
    return tuple(sorted(found)), floats


def _variants(case: Case, main: T) -> Iterator[list[T]]:
    """Yield the tensors of a case with other types for its main tensor."""
    for dtype, is_quantized in (*((name, False) for name in _TYPES), *((name, True) for name in _QUANTIZED)):
        if is_quantized and main.scale is None:
            continue
        scale = {} if is_quantized else {"scale": None, "zero": 0}
        yield [replace(item, dtype=dtype, **scale) if item.dtype == main.dtype else item for item in case.tensors]


@cache
def _cases() -> dict[str, list[Case]]:
    found: dict[str, list[Case]] = {}
    for case in (*quantized_cases(0, many=8), *float_cases(0)):
        found.setdefault(case.op.code, []).append(case)
    return found


def _of_plain_forms(code: str) -> Iterator[tuple[str, str]]:
    """Yield the types with which an operator is imported without options on equal shapes, and its contract."""
    if code not in vars(tflite.BuiltinOperator):
        return
    for count, dtype, scale in itertools.product((1, 2, 3), _TYPES, (None, 0.5)):
        if scale is not None and dtype not in _QUANTIZED:
            continue
        names = [f"x{index}" for index in range(count)]
        tensors = [T(name, (1, 4), dtype, scale=scale) for name in (*names, "y")]
        module = _accepted(tensors, Op(code, names, ["y"]), names)
        if module is not None:
            yield _kind_of(tensors[0]), _contract(module)


def _accepted(tensors: Sequence[T], op: Op, inputs: Sequence[str]) -> ir.IRModule | None:
    try:
        return mlfc.import_model(build(tensors, [op], inputs, op.outputs))[0]
    except MlfcError:
        return None


def _kind_of(tensor: T) -> str:
    return tensor.dtype if tensor.scale is None else f"quantized {tensor.dtype}"
