"""Small models with large demands: `check` and `compile` reject the same ones, in bounded steps and memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import LimitError, OptionError
from mlfc.support.cost import LIMITS, limited, require, spend
from tests.hostile.corpus_models import BOMBS
from tests.hostile.reading import MODEL_ACTIONS, Reader, Reading
from tests.onnx_models import model

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
# the costliest one, a node with a thousand outputs, would make 12 million calls
MAX_CALLS = 20_000_000
MAX_MEGABYTES = 384
# their work grows only with the size of the file, which is small enough
COMPILED = {"wide_lookup_tables", "padded_pool", "split_into_hundreds"}
# (size, limit factor): models of a fraction of the full size, rejected with a fraction of the limits and of the calls;
# the factor is smaller where the limited quantity grows with the square of the size
SMALLER = {
    "everything_live_at_once": (1 / 16, 0.0325), "long_work_on_constants": (1 / 10, 1 / 10),
    "split_into_hundreds": (0.4**2, 1),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_model_costs_little(name: str, reader: Reader, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(BOMBS[name]())
    size, factor = SMALLER.get(name, (1, 1))
    readings = reader.read_all(MODEL_ACTIONS, path, limit_factor=factor)
    for action, reading in readings.items():
        said = f"{action}: {reading.calls:,} calls, {reading.megabytes:.0f} MiB, {reading.error}: {reading.text[:600]}"
        assert reading.error is None, said
        assert reading.calls < MAX_CALLS * size, said
        assert reading.megabytes < MAX_MEGABYTES, said
        assert ("[MLF103]" in reading.text) == (name not in COMPILED), said
    assert _first(readings["check"]) == _first(readings["compile"])


def _first(reading: Reading) -> str:
    return reading.text.partition("\n")[0]


def test_weights_in_the_file_pay_for_themselves() -> None:
    """Accept constants in proportion to the weights in the file; a model with few weights must not make as many."""
    weights = {f"w{i}": np.full((1 << 20,), i, np.float32) for i in range(24)}
    nodes = [helper.make_node("Add", [f"w{i}", "x"], [f"a{i}"]) for i in range(24)]
    nodes.append(helper.make_node("Sum", [f"a{i}" for i in range(24)], ["y"]))
    data = model(nodes, {"x": (1,)}, ["y"], weights).SerializeToString()
    assert len(data) > LIMITS["constants"].base
    assert mlfc.check(data) == []


def test_a_factor_raises_the_limits() -> None:
    nodes = [helper.make_node("ConstantOfShape", ["shape"], [f"c{i}"]) for i in range(20)]
    nodes.append(helper.make_node("Sum", ["x", *(f"c{i}" for i in range(20))], ["y"]))
    data = model(nodes, {"x": (1,)}, ["y"], {"shape": np.array([1 << 20])}).SerializeToString()
    with pytest.raises(LimitError, match=r"exceed 67,\d+,\d+ bytes by .*raise the limits: --limit-factor 3"):
        mlfc.import_model(data)
    assert len(mlfc.import_model(data, limit_factor=3)[1]) == 20
    (problem,) = mlfc.check(data)
    assert isinstance(problem, LimitError)
    assert mlfc.check(data, limit_factor=3) == mlfc.check(data, limit_factor=1e308) == []
    for factor in (0, -1, float("inf"), float("nan")):
        with pytest.raises(OptionError, match="expected a positive number"):
            mlfc.import_model(data, limit_factor=factor)


@pytest.mark.parametrize("command", ["check", "compile", "verify"])
def test_every_command_that_reads_a_model_takes_the_factor(command: str, tmp_path: Path) -> None:
    output = ["-o", tmp_path / "out.tar"] if command == "compile" else []
    arguments = [command, DIGITS, *output, "--limit-factor", 1e-9]
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert "[MLF103]" in result.output or isinstance(result.exception, LimitError)
    assert list(tmp_path.iterdir()) == []


def test_the_advice_of_a_limit_is_enough() -> None:
    with limited(0, 0) as cost:
        with pytest.raises(LimitError) as caught:
            spend("operators", 12_345, "node 'n'")
        assert cost.used["operators"] == 0
    factor = float(str(caught.value).rpartition(" ")[2])
    with limited(0, 0, factor):
        require("operators", 12_345)
        spend("operators", 12_345)
    spend("operators", 1 << 60)
