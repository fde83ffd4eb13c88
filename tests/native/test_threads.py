"""Kernels that share their work among threads: the same bits for any number, whoever runs them."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.codegen import c_parallel
from mlfc.errors import OptionError
from mlfc.runtime.threads import count_launches
from mlfc.tir import parallel
from tests import operator_cases, recurrent_models
from tests.harness import seeded_inputs
from tests.native.test_operators_in_c import module_of

FAMILIES = {"nn": operator_cases.nn_cases, "pool": operator_cases.pool_cases, "indexing": operator_cases.indexing_cases}


@pytest.fixture(autouse=True)
def _default_threads() -> Iterator[None]:
    yield
    mlfc.set_num_threads(0)


@pytest.fixture
def _any_work_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (parallel, c_parallel):
        monkeypatch.setattr(module, "GRAIN", 1.0)


def _assert_same_bits(model: Any, inputs: Any) -> None:
    mlfc.set_num_threads(1)
    before = count_launches()
    expected = model.run(inputs)
    assert count_launches() == before, "one thread needs no other"
    for count in (2, 3, 7):
        mlfc.set_num_threads(count)
        assert mlfc.get_num_threads() == count
        for name, found in model.run(inputs).items():
            assert found.tobytes() == expected[name].tobytes(), f"{name} with {count} threads"
    assert count_launches() > before


@pytest.mark.usefixtures("_any_work_is_shared")
@pytest.mark.parametrize("target", ["c", "llvm"])
@pytest.mark.parametrize("family", FAMILIES)
def test_operators(family: str, target: str) -> None:
    module, inputs = module_of(FAMILIES[family]())
    _assert_same_bits(load_factory(mlfc.build(module, target, module_name="tested")), inputs)


@pytest.mark.usefixtures("_any_work_is_shared")
@pytest.mark.parametrize("model", ["kws_ref_model", "vww_96_int8", "trained_lstm_int8", "pretrainedResnet"])
def test_models(model: str, models: Path) -> None:
    module, params = mlfc.import_model(models / f"{model}.tflite")
    loaded = load_factory(mlfc.build(module, "llvm", params))
    _assert_same_bits(loaded, seeded_inputs(loaded.inputs, 5))
