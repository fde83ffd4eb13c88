"""Firmware runs sequences: states persist between the steps of one run, and results equal this machine's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import mlfc
from mlfc.errors import RunError
from mlfc.micro.firmware.bare_metal import OUTPUTS
from mlfc.micro.run.emulator import emulated_factory
from mlfc.micro.run.firmware_run import read_outputs
from mlfc.support.tensor_info import Array, TensorInfo
from mlfc.verify import verify
from tests.emulator.conftest import need_board
from tests.state_models import FEATURES, GRU_STATES, OPEN_FRAMES, gru, open_frames

ARM, AVR = "mps2-an386", "arduino_mega"


def steps(count: int = 3) -> list[dict[str, Array]]:
    """Return frames of the cell."""
    rng = np.random.default_rng(3)
    return [{"x": rng.normal(size=(1, FEATURES)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize(("board", "executor"), [(ARM, "aot"), (ARM, "graph"), (AVR, "aot")])
def test_states_persist_between_the_steps_of_a_run(board: str, executor: str) -> None:
    model = mlfc.compile(gru(), need_board(board).target, executor=executor, states=GRU_STATES)
    firmware = emulated_factory(model.factory, need_board(board))
    sequence = steps()
    run = firmware.measure_steps(sequence)
    expected = [model.run(given)["y"] for given in sequence]
    np.testing.assert_allclose([step["y"] for step in run.steps], expected, rtol=1e-5)
    assert run.outputs["y"] == run.steps[-1]["y"]
    # each run is a new sequence
    assert firmware.run(sequence[0])["y"] == run.steps[0]["y"]
    if board == ARM and executor == "aot":
        one = firmware.measure(sequence[0]).instructions
        assert one is not None
        assert run.instructions is not None
        assert 0.5 * one < run.instructions < 2 * one  # the mean of a step, not the sum


def test_dynamic_models_take_steps_of_different_lengths() -> None:
    model = mlfc.compile(open_frames(), need_board(ARM).target, states=OPEN_FRAMES, shapes={"x": (("n", 1, 8), 3)})
    firmware = emulated_factory(model.factory, need_board(ARM))
    sequence = [{"x": np.full((rows, 3), rows, np.float32)} for rows in (3, 1, 8)]
    for step, given in zip(firmware.measure_steps(sequence).steps, sequence, strict=True):
        for name, array in model.run(given).items():
            np.testing.assert_allclose(step[name], array, rtol=1e-6)


def test_verify_compares_a_sequence(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    need_board(ARM)
    onnx.save(gru(), tmp_path / "cell.onnx")
    np.savez(tmp_path / "x.npz", x=np.stack([given["x"] for given in steps(4)]))
    result = verify(tmp_path / "cell.onnx", states=GRU_STATES, board=ARM, inputs=tmp_path / "x.npz", layers=True)
    assert result.is_within
    assert result.samples == 4
    assert "h_out" in [item.tensor for item in result.layers]
    # an archive of another cell differs from the second step at the latest
    archive = mlfc.compile(gru(), need_board(ARM).target, states=GRU_STATES, module_name="cell")
    path = archive.export(tmp_path / "cell.tar")
    assert verify(tmp_path / "cell.onnx", path, board=ARM, inputs=tmp_path / "x.npz").is_within
    other = gru()
    weights = {item.name: item for item in other.graph.initializer}
    data = onnx.numpy_helper.to_array(weights["gate"]).copy()
    data[FEATURES:] *= -1  # acts on the state alone, which is zero in a first step
    weights["gate"].CopyFrom(onnx.numpy_helper.from_array(data, "gate"))
    onnx.save(other, tmp_path / "other.onnx")
    wrong = verify(tmp_path / "other.onnx", path, board=ARM, inputs=tmp_path / "x.npz")
    assert wrong.first_differing is not None
    assert wrong.first_differing.sample != "set 0"


def test_firmware_of_former_projects_is_recognized(tmp_path: Path) -> None:
    info = TensorInfo("y", (2,), "int8")
    (tmp_path / OUTPUTS).write_bytes(b"\1\2")
    with pytest.raises(RunError, match=r"only runs one set of inputs, got 3\. Create the project again"):
        read_outputs(tmp_path, [info], 3)
    (tmp_path / OUTPUTS).write_bytes(b"\1\2\3\4")
    assert [step["y"].tolist() for step in read_outputs(tmp_path, [info], 2)] == [[1, 2], [3, 4]]
    with pytest.raises(RunError, match="wrote 4 bytes"):
        read_outputs(tmp_path, [info], 3)
