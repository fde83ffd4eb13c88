"""A part of the sweep over TFLite's operators and dtypes, and its stored results."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from mlfc.frontend.tflite.node import CONVERTERS
from tests.tflite_sweep import FILE, Form, cases, computed, difference, litert_of, meaningless

SAMPLE = 50
# built-in operators in TFLite Micro's AllOpsResolver that the sweep covers; the others have separate tests
MICRO = """
ABS ADD ADD_N ARG_MAX ARG_MIN AVERAGE_POOL_2D BATCH_MATMUL BATCH_TO_SPACE_ND BROADCAST_ARGS CAST CEIL
CONCATENATION CONV_2D COS CUMSUM DEPTHWISE_CONV_2D DEPTH_TO_SPACE DEQUANTIZE DIV DYNAMIC_UPDATE_SLICE ELU
EMBEDDING_LOOKUP EQUAL EXP EXPAND_DIMS FILL FLOOR FLOOR_DIV FLOOR_MOD FULLY_CONNECTED GATHER GATHER_ND GREATER
GREATER_EQUAL HARD_SWISH L2_NORMALIZATION L2_POOL_2D LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND LOGICAL_NOT LOGICAL_OR
LOGISTIC LOG_SOFTMAX MAXIMUM MAX_POOL_2D MEAN MINIMUM MIRROR_PAD MUL NEG NOT_EQUAL PACK PAD PADV2 PRELU QUANTIZE
REDUCE_ALL REDUCE_MAX REDUCE_MIN RELU RELU6 RESHAPE RESIZE_BILINEAR RESIZE_NEAREST_NEIGHBOR REVERSE_V2 ROUND RSQRT
SELECT_V2 SHAPE SIN SLICE SOFTMAX SPACE_TO_BATCH_ND SPACE_TO_DEPTH SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SQUEEZE
STRIDED_SLICE SUB SUM TANH TRANSPOSE TRANSPOSE_CONV UNPACK ZEROS_LIKE
"""


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    """Return the stored results of the sweep."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def test_every_operator_of_tflite_micro_is_equal_in_every_dtype_that_litert_runs(record: dict[str, Any]) -> None:
    assert {*MICRO.split()} <= {*record["kinds"]}
    # operators with differences are not imported at all
    assert {item.split(" ")[0] for item in record["other"]}.isdisjoint(CONVERTERS)
    assert record["equal"] + len(record["other"]) == record["run"]


def test_a_part_of_the_sweep_is_equal_again(record: dict[str, Any]) -> None:
    known = {(code, kind) for code, kinds in record["kinds"].items() for kind in kinds}
    listed = [
        form
        for kind, form in cases()
        if (form.code, str(kind).removesuffix(", other scales")) in known
        and not meaningless(kind, form)
        and f"{form.title} | {kind}" not in record["other"]
    ]
    chosen: list[Form] = [
        listed[index] for index in np.random.default_rng(3).choice(len(listed), SAMPLE, replace=False)
    ]
    run = [(form, expected) for form, expected in zip(chosen, litert_of(chosen), strict=True) if expected is not None]
    assert len(run) > SAMPLE // 2
    wrong = {
        form.title: text
        for (form, expected), found in zip(run, computed([form for form, _ in run]), strict=True)
        if (text := difference(found, expected))
    }
    assert wrong == {}
