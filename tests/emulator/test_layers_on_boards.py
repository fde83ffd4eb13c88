"""Every operator of firmware is compared, and one that the board computes wrongly is reported by its original node."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.cli.main import app
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.micro.board.board import Board, find_board
from mlfc.micro.run.emulator import EmulatedModule, emulated_factory
from mlfc.runtime.tensor.arrays import fill
from mlfc.support.content import to_bytes
from mlfc.verify import compare, verify
from mlfc.verify.board_layers import BoardLayers

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
BOARD = "mps2-an386"
DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
FAULTY = 2


def with_wrong_weight(factory: Factory, operator: int) -> dict[str, Any]:
    """Return the code with one changed byte in an operator's weights."""
    path = f"src/{factory.module_name}_lib1.c"
    text = to_bytes(factory.code.files[path]).decode()
    call = text.split(f"MLFC_TRACE_BEGIN({operator});")[1].split(";")[0]
    arrays = {found[1]: found for found in re.finditer(r"(\w+)\[(\d+)\] [^;=]*= \{\s*\(?(-?\d+)", text)}
    weights = max((arrays[word] for word in re.findall(r"\w+", call) if word in arrays), key=lambda one: int(one[2]))
    wrong = text[: weights.start(3)] + str(int(weights[3]) ^ 64) + text[weights.end(3) :]
    return {**factory.code.files, path: wrong.encode()}


def faulty_board(factory: Factory, board: Board, **options: Any) -> EmulatedModule:
    """Return `emulated_factory` with a fault that only the board has, built with less optimization."""
    faulty = replace(factory)
    # a cached property, which would otherwise be printed from the program
    faulty.__dict__["code"] = replace(factory.code, files=with_wrong_weight(factory, FAULTY))
    return emulated_factory(faulty, board, cflags="-O1", **options)


@pytest.mark.parametrize("board", ["mps3-an547", "qemu-riscv32"])
def test_every_operator_of_the_code_that_ships_is_compared(models: Path, board: str) -> None:
    path = models / "kws_ref_model.tflite"
    result = verify(path, samples=1, layers=True, board=board)
    assert result.is_within
    module, params = mlfc.import_model(path)
    calls = mlfc.build(module, find_board(board).target, params).program.calls
    assert [item.nodes for item in result.layers] == [call.nodes for call in calls]
    assert not any(item.is_unlike_host for item in result.layers)


def test_floats_that_boards_round_otherwise_are_fetched_and_compared() -> None:
    result = verify(DIGITS / "digits.onnx", samples=1, layers=True, board=BOARD)
    assert result.is_within
    assert any(item.is_unlike_host and 0 < item.largest < item.tolerance for item in result.layers)


def test_the_first_operator_that_a_board_computes_wrongly_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = models / "kws_ref_model.tflite"
    monkeypatch.setattr(compare, "emulated_factory", faulty_board)
    result = verify(path, samples=1, layers=True, board=BOARD)
    first = result.first_differing
    assert first is not None
    assert first == result.layers[FAULTY]
    assert len(first.nodes) == 1
    assert first.nodes[0].endswith(f" (CONV_2D #{FAULTY})")
    assert first.is_unlike_host
    assert first.elements > 0
    assert all(item.is_within and not item.is_unlike_host for item in result.layers[:FAULTY])


def test_what_is_fetched_is_what_the_board_has(models: Path) -> None:
    module, params = mlfc.import_model(models / "kws_ref_model.tflite")
    factory = mlfc.build(module, find_board(BOARD).target, params, module_name="kws")
    layers = BoardLayers(factory, faulty_board(factory, find_board(BOARD), trace=True))
    inputs = fill(layers.inputs, seed=4)
    there, here = layers.run(inputs), layers.on_host(inputs)
    names = list(layers.layers)
    for name in names[:FAULTY]:
        np.testing.assert_array_equal(there[name], here[name])
    # one weight of one filter is wrong, so only that channel differs
    wrong = (there[names[FAULTY]] != here[names[FAULTY]]).reshape(-1, here[names[FAULTY]].shape[-1])
    assert wrong.any(axis=0).sum() == 1
    assert names[FAULTY] in layers.unlike_host


def test_the_command_line_names_it(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compare, "emulated_factory", faulty_board)
    model = str(models / "kws_ref_model.tflite")
    result = CliRunner().invoke(app, ["verify", model, "--layers", "--board", BOARD, "--samples", "1"])
    message = str(result.exception)
    assert f"CONV_2D #{FAULTY} " in message
    assert re.search(r"the first operator that differs is .*: by \d+ in element \d+, tolerance 0", message)
    assert "The same C is correct on this machine" in message
    assert result.stdout.count("DIFFERS on the board") >= 1


def test_boards_that_cannot_hand_tensors_over_are_refused() -> None:
    with pytest.raises(OptionError, match=r'arduino_mega.*--layers --target "c -mcpu=avr"'):
        verify(DIGITS / "digits_int8.tflite", samples=1, layers=True, board="arduino_mega")
