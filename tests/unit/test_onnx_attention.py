"""Attention and related operators: cases that ONNX's tests do not cover, and rejected models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

import mlfc
from mlfc.errors import MlfcError
from mlfc.relay.ir import Constant
from mlfc.relay.text import from_text, to_text
from mlfc.relay.visitor import post_order
from mlfc.transform.fold_constant import FoldConstant
from tests.attention_models import CAPACITY, DECODER_STATES, Array, decoder, single_node
from tests.relay_run import run_main

RNG = np.random.default_rng(5)


def reals(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


QKV = {"q": reals(1, 2, 3, 4), "k": reals(1, 2, 5, 4), "v": reals(1, 2, 5, 4)}
FLAT = {"q": reals(1, 3, 8), "k": reals(1, 5, 8), "v": reals(1, 5, 8)}
NO_STATE: dict[str, Array | None] = {"pk": None, "pv": None}


def results(model: onnx.ModelProto, inputs: Mapping[str, Array | None]) -> list[Array]:
    module, params = mlfc.import_model(model)
    return run_main(module, {**{name: value for name, value in inputs.items() if value is not None}, **params})


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("shape", [(5,), (1, 5), (3, 1), (3, 5), (2, 1, 5), (1, 1, 3, 5), (3, 4)])
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks_of_any_form_and_rows_without_keys(kind: str, shape: tuple[int, ...], causal: int) -> None:
    mask: Array = RNG.random(shape) < 0.5
    mask.reshape(-1)[: shape[-1]] = False  # at least one query has no key
    if kind == "float":
        mask = np.where(mask, reals(*shape), -np.inf).astype(np.float32)
    inputs = {**QKV, "mask": mask}
    model = single_node("Attention", inputs, ("y", "", "", "scores"), is_causal=causal, qk_matmul_output_mode=3)
    # ONNX pads missing keys of a mask instead of broadcasting; its reference requires a mask for all queries
    missing = np.full((*shape[:-1], 5 - shape[-1]), False if kind == "bool" else -np.inf, mask.dtype)
    whole = np.broadcast_to(np.concatenate([mask, missing], -1), (1, 2, 3, 5))
    named = {**QKV, "mask": np.ascontiguousarray(whole)}
    expected = ReferenceEvaluator(model).run(None, named)
    for found, wanted in zip(results(model, inputs), expected, strict=True):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_relay_text_of_causal_attention_with_a_dynamic_length() -> None:
    dynamic = {name: (*value.shape[:2], "n", value.shape[3]) for name, value in QKV.items()}
    model = single_node("Attention", QKV, is_causal=1)
    for item in model.graph.input:
        item.type.tensor_type.shape.dim[2].dim_param = "n"
    module, _ = mlfc.import_model(model, dynamic=True)
    text = to_text(module)
    assert f"Tensor[({', '.join(map(str, dynamic['q']))}), float32]" in text
    assert "arange" in text
    assert to_text(from_text(text)) == text


@pytest.mark.parametrize("mask", [np.float32([0, 0, -np.inf, 0, 0]), np.array([True, True, False, True, True])])
def test_masks_are_added_to_scores(mask: Array) -> None:
    """Follow ONNX's definition: the score of a hidden key is NaN or minus infinity, and a value of NaN counts."""
    for name in "kv":
        inputs = {part: value.copy() for part, value in QKV.items()} | {"mask": mask}
        inputs[name][0, 0, 2, 1] = np.nan
        (found,) = results(single_node("Attention", inputs), inputs)
        assert np.isnan(found[:, 0, :, 1]).all()
        assert np.isfinite(found[:, 1]).all()


@pytest.mark.parametrize(
    ("inputs", "attributes", "message"),
    [
        ({**QKV, "q": reals(2, 3)}, {}, "expected Q, K and V of 3 or of 4 dimensions, got (2, 3), (1, 2, 5, 4)"),
        (FLAT, {"kv_num_heads": 2}, "requires the attribute 'q_num_heads'"),
        (FLAT, {"q_num_heads": 3, "kv_num_heads": 2}, "Q of shape (1, 3, 8) has no 3 heads of equal size"),
        ({**QKV, "q": reals(1, 3, 3, 4)}, {}, "3 heads of queries are not a multiple of 2 heads of keys"),
        ({**QKV, "v": reals(1, 2, 4, 4)}, {}, "(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 4, 4) do not fit together"),
        (QKV, {"q_num_heads": 4}, "q_num_heads is 4, but the tensor of shape (1, 2, 3, 4) has 2 heads"),
        ({**QKV, "m": reals(2, 5)}, {}, "a mask of shape (2, 5) does not fit scores of shape (1, 2, 3, 5)"),
        ({**QKV, "m": np.ones((3, 5), np.int32)}, {}, "a mask of bool or floating-point numbers, got int32"),
        ({**QKV, "m": None, "pk": reals(1, 2, 1, 4)}, {}, "past_key and past_value are given together"),
        (
            {**QKV, "m": None, "pk": reals(1, 2, 1, 4), "pv": reals(1, 2, 1, 5)},
            {},
            "expected past_value (1, 2, ..., 4)",
        ),
        ({**QKV, "m": None, **NO_STATE, "n": np.ones(2, np.int64)}, {}, "expected 1 integers as nonpad_kv_seqlen"),
        (QKV, {"qk_matmul_output_mode": 4}, "expected a qk_matmul_output_mode from 0 to 3, got 4"),
        (QKV, {"softmax_precision": 7}, "softmax_precision 7 is not a floating-point type"),
        (QKV, {"softcap": -1.0}, "expected a scale and a softcap of 0 or more, got None and -1.0"),
    ],
)
def test_attention_that_does_not_fit_is_refused(
    inputs: dict[str, Array | None], attributes: dict[str, Any], message: str
) -> None:
    refuses(single_node("Attention", inputs, **attributes), message)


def refuses(model: onnx.ModelProto, message: str) -> None:
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(model)
    assert message in str(caught.value)
    assert "node 'n'" in str(caught.value)


TABLES = {"cos": reals(6, 2), "sin": reals(6, 2), "ids": np.zeros((1, 3), np.int64)}
STEPS = {"q": reals(1, 3, 8), "k": reals(1, 3, 8), "v": reals(1, 3, 8)}
HEADS = {"q_num_heads": 2, "kv_num_heads": 2}


@pytest.mark.parametrize(
    ("operator", "inputs", "attributes", "message"),
    [
        ("RotaryEmbedding", {"x": reals(1, 3, 8), **TABLES}, {}, "num_heads is required for a tensor"),
        ("RotaryEmbedding", {"x": reals(1, 2, 3, 6), **TABLES}, {}, "tables of 2 dimensions with 6 / 2 columns"),
        ("RotaryEmbedding", {"x": reals(1, 2, 4, 4), **TABLES}, {}, "position ids of shape (1, 4), got (1, 3)"),
        ("SwiGLU", {"a": reals(2, 3), "b": reals(1, 3)}, {}, "expected tensors of one shape, got (2, 3) and (1, 3)"),
        ("TensorScatter", {"past": reals(2, 4, 3), "new": reals(2, 5, 3)}, {}, "of shape (2, 5, 3) does not fit"),
        ("TensorScatter", {"past": reals(2, 4), "new": reals(2, 1)}, {"axis": 0}, "not fit a cache of shape (2, 4)"),
        ("TensorScatter", {"past": reals(2, 4), "new": reals(2, 1)}, {"axis": 1, "mode": "x"}, "linear or circular"),
        ("CausalConvWithState", {"x": reals(1, 2, 5), "w": reals(3, 1, 4)}, {}, "of shape (3, 1, 4) do not fit"),
        (
            "CausalConvWithState", {"x": reals(1, 2, 5), "w": reals(2, 1, 4), "b": None, "past": reals(1, 2, 4)}, {},
            "expected a state of shape (1, 2, 3), got (1, 2, 4)",
        ),
        ("LinearAttention", STEPS, HEADS, "update_rule 'gated_delta' requires the input 'decay'"),
        ("LinearAttention", STEPS, {**HEADS, "update_rule": "x"}, "expected update_rule linear, gated"),
        ("LinearAttention", STEPS, {**HEADS, "q_num_heads": 3, "update_rule": "linear"}, "must be a multiple of"),
        (
            "LinearAttention", dict.fromkeys("qkv", reals(1, 65, 8)), {**HEADS, "update_rule": "linear"},
            "of 65 steps is not supported",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(
    operator: str, inputs: dict[str, Array | None], attributes: dict[str, Any], message: str
) -> None:
    refuses(single_node(operator, inputs, opset=28, **attributes), message)


def test_a_cache_takes_what_is_inside_of_it() -> None:
    inputs = {"past": reals(3, 4, 2), "new": reals(3, 2, 2), "at": np.array([0, 3, 2])}
    (found,) = results(single_node("TensorScatter", inputs), inputs)
    wanted = inputs["past"].copy()
    wanted[0, :2], wanted[1, 3:], wanted[2, 2:] = inputs["new"][0], inputs["new"][1, :1], inputs["new"][2]
    np.testing.assert_array_equal(found, wanted)


def test_masks_of_positions_are_not_stored() -> None:
    inputs = {name: reals(1, 4, 96, 4) for name in "qkv"}
    for outputs, largest in ((("y",), 0), (("y", "", "", "scores"), 96 * 4)):
        model = single_node("Attention", inputs, outputs, is_causal=1, left_window_size=8, opset=25)
        module = FoldConstant()(FoldConstant()(mlfc.import_model(model)[0]))
        sizes = [part.type.nbytes for part in post_order(module.main.body) if isinstance(part, Constant)]
        assert max(sizes, default=0) == largest
        compiled = mlfc.compile(model, target="llvm")
        assert {value.dtype for call in compiled.factory.program.calls for value in call.inputs} == {"float32"}
        wanted = ReferenceEvaluator(model).run(None, inputs)
        for found, expected in zip(compiled.run(inputs).values(), wanted, strict=False):
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_decoder_generates_token_by_token_with_its_cache_as_state() -> None:
    model = decoder()
    reference = ReferenceEvaluator(model)
    ours = mlfc.compile(model, target="llvm", states=DECODER_STATES)
    state = {
        item.name: np.zeros([dim.dim_value for dim in item.type.tensor_type.shape.dim]) for item in model.graph.input
    }
    state = {name: state[name].astype(np.int64 if name == "position" else np.float32) for name in DECODER_STATES}
    token, seen = np.array([[3]]), []
    for _ in range(CAPACITY):
        wanted = dict(zip(reference.output_names, reference.run(None, {"token": token, **state}), strict=True))
        (scores,) = ours.run({"token": token}).values()
        np.testing.assert_allclose(scores, wanted["scores"], rtol=1e-4, atol=1e-4)
        state = {name: wanted[after] for name, after in DECODER_STATES.items()}
        token = scores.argmax(axis=-1)
        seen.append(int(token[0, 0]))
    assert len(set(seen)) > 2


def test_a_cache_is_written_in_its_place() -> None:
    program = mlfc.compile(decoder(), states=DECODER_STATES, dry_run=True).factory.program
    for state in program.states:
        if state.before.name != "position":  # the attention still reads it after the next one has been computed
            writer = next(call for call in program.calls if call.output is state.written)
            assert state.before in writer.inputs
