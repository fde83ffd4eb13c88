"""Losses: cases that ONNX's tests do not cover, and rejected models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper

import mlfc
from mlfc.errors import MlfcError
from tests.relay_run import run_main

SCORES = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
CLASSES = np.array([2, -1, 0])


def loss(operator: str, classes: tuple[int, ...] = (3,), weights: int = 4, **attributes: Any) -> ModelProto:
    shapes = {"scores": (1, (3, 4)), "classes": (7, classes), "weights": (1, (weights,))}
    inputs = [helper.make_tensor_value_info(name, *given) for name, given in shapes.items()]
    node = helper.make_node(operator, [*shapes], ["loss"], name="the_loss", **attributes)
    graph = helper.make_graph([node], "g", inputs, [helper.make_tensor_value_info("loss", 1, None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_a_score_that_is_not_finite_does_not_show_where_its_class_is_ignored() -> None:
    scores, weights = SCORES.copy(), np.array([1.0, 2.0, 0.5, np.inf], np.float32)
    scores[1] = np.nan
    module, params = mlfc.import_model(loss("NegativeLogLikelihoodLoss", ignore_index=-1))
    (found,) = run_main(module, {"scores": scores, "classes": CLASSES, "weights": weights, **params})
    np.testing.assert_allclose(found, -(0.5 * scores[0, 2] + scores[2, 0]) / 1.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (loss("SoftmaxCrossEntropyLoss", classes=(4,)), "classes of shape (4,) (int64) do not fit scores of shape (3,"),
        (loss("NegativeLogLikelihoodLoss", weights=3), "weights of shape (3,) do not fit 4 classes"),
        (loss("NegativeLogLikelihoodLoss", reduction="most"), "unknown reduction 'most'; known: mean, none, sum"),
    ],
)
def test_what_does_not_fit_is_refused(model: ModelProto, message: str) -> None:
    with pytest.raises(MlfcError) as caught:
        mlfc.import_model(model)
    assert message in str(caught.value)
    assert "the_loss" in str(caught.value)
