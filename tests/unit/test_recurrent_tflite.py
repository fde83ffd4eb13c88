"""TFLite's recurrent operators that the importer rejects, each with one error that names the reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import MlfcError
from tests.recurrent_tflite import RELU, Layer, Model, bidirectional, lstm, rnn, single, svdf
from tests.tflite_builder import T


def changed(layer: Layer, name: str, **fields: Any) -> Layer:
    """Return a layer in which one tensor is changed."""
    return replace(layer, tensors=[replace(item, **fields) if item.name == name else item for item in layer.tensors])


def without(layer: Layer, position: int) -> Layer:
    inputs = [name if place != position else "" for place, name in enumerate(layer.op.inputs)]
    return replace(layer, op=replace(layer.op, inputs=inputs))


def with_input(layer: Layer, position: int, tensor: T) -> Layer:
    inputs = [name if place != position else tensor.name for place, name in enumerate(layer.op.inputs)]
    return replace(layer, tensors=[*layer.tensors, tensor], op=replace(layer.op, inputs=inputs))


def with_options(layer: Layer, **fields: Any) -> Layer:
    return replace(layer, op=replace(layer.op, fields={**layer.op.fields, **fields}))


NORM = T("norm", (6,), "int16", np.ones(6), 0.001)
REFUSED: list[tuple[Callable[[], Layer], str]] = [
    (lambda: changed(lstm("m"), "state", is_variable=False), "no operator computes its input"),
    (lambda: changed(lstm("m"), "cell", scale=0.0003), "It must be a power of two"),
    (lambda: changed(lstm("m"), "cell", scale=2.0**-8), "It must be a power of two"),
    (lambda: changed(lstm("m"), "recurrent2", shape=(6, 5), value=np.zeros((6, 5))), "input 7 has shape (6, 5)"),
    (lambda: changed(lstm("m"), "bias1", shape=(5,), value=np.zeros(5)), "input 13 has shape (5,)"),
    (lambda: changed(lstm("m"), "state", shape=(3, 6)), "a state has the shape (3, 6), expected (2, 6)"),
    (lambda: changed(lstm("m"), "x", shape=(2, 5)), "sequences of batches"),
    (lambda: without(lstm("m"), 14), "input 14 is missing"),
    (lambda: without(lstm("m"), 18), "input 18 is missing"),
    (lambda: replace(lstm("m"), op=replace(lstm("m").op, intermediates=[])), "expected 5 intermediate tensors"),
    (lambda: with_input(lstm("m"), 21, NORM), "has no scale and zero point"),
    (lambda: with_input(lstm("m", "float"), 21, NORM), "do not mix"),
    (lambda: lstm("m", "int16", peephole=True), "TFLite Micro's LSTM has four gates"),
    (lambda: lstm("m", "int16", couples_input=True), "TFLite Micro's LSTM has four gates"),
    (lambda: lstm("m", "int16", activation=RELU), "TANH as its activation function"),
    (lambda: changed(svdf("m"), "state", dtype="int8", scale=0.01), "with a state of type INT8 is not supported"),
    (lambda: lstm("m", units=9, peephole=True), "which TFLite misreads"),
    (lambda: lstm("m", "float", activation=6), "activation function number 6"),
    (lambda: changed(rnn("m", "float"), "x", shape=(2, 5)), "sequences of batches"),
    (lambda: changed(rnn("m", "float"), "weights0", shape=(5, 5), value=np.zeros((5, 5))), "its tensors do not fit"),
    (lambda: changed(rnn("m", "float"), "weights0", dtype="int16"), "of types float32 and int16 is not supported"),
    (lambda: changed(bidirectional("m", "float", is_lstm=True), "bias10", shape=(5,), value=np.zeros(5)), "input 14"),
    (lambda: changed(single("m", "float", full=False), "bias2", shape=(5,), value=np.zeros(5)), "tensors do not fit"),
    (lambda: changed(single("m", "float", full=False), "x", dtype="uint8"), "in float32 only"),
    (lambda: changed(lstm("m", peephole=True), "peephole1", shape=(5,), value=np.zeros(5)), "peephole weights must"),
    (lambda: changed(lstm("m", units=4), "projection", shape=(4, 5), value=np.zeros((4, 5))), "a projection of shape"),
    (lambda: changed(svdf("m"), "state", shape=(1, 29)), "a state of shape (1, 29)"),
    (lambda: changed(svdf("m"), "x", shape=(1, 8)), "do not fit data (1, 8)"),
    (lambda: with_options(svdf("m"), Rank=4), "expected a multiple of 4 filters, got 6"),
    (lambda: with_options(svdf("m"), Rank=0), "rank of at least 1 for 6 filters, got 0"),
    (lambda: changed(svdf("m"), "state", is_variable=False), "no operator computes its input"),
    (lambda: changed(svdf("m"), "feature", value=None), "no operator computes its input"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_each_wrong_layer_is_one_error(number: int) -> None:
    make, message = REFUSED[number]
    layer = make()
    data = Model([layer]).data
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(data)
    assert message in str(caught.value)
