"""States: inputs tied to outputs, their memory in the plan, and their description."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import mlfc
from mlfc.cli.options import Inputs, parse_states
from mlfc.errors import InputError, InternalError, MlfcError, OptionError
from mlfc.memory import prove
from mlfc.relay.faults import state_faults
from mlfc.relay.ir import State
from mlfc.relay.text import from_text, to_text
from mlfc.runtime.executors.graph_json import parse_graph
from mlfc.verify import verify
from tests.state_models import (
    DELAYS,
    GRU_STATES,
    WIDTH,
    WINDOW,
    delay_line,
    frames,
    gru,
    streaming_convolution,
    window,
)
from tests.unit.test_cli import mlfc as mlfc_command


def test_a_tied_pair_is_neither_input_nor_output() -> None:
    model = mlfc.compile(gru(), states=GRU_STATES, dry_run=True)
    assert [info.name for info in model.factory.interface().inputs] == ["x"]
    assert [info.name for info in model.factory.interface().outputs] == ["y"]
    (state,) = model.factory.interface().states
    assert (state.name, state.shape, state.dtype, state.next, state.offset) == ("h_in", (1, 8), "float32", "h_out", 0)
    assert model.factory.interface().memory.state_bytes == 4 * WIDTH


@pytest.mark.parametrize(
    ("states", "initial", "message"),
    [
        ({"h_im": "h_out"}, None, "state: unknown input 'h_im'; nearest: 'h_in'"),
        ({"h_in": "h_ot"}, None, "state: unknown output 'h_ot'; nearest: 'h_out'"),
        ({"gate": "h_out"}, None, "unknown input 'gate'"),
        ({"x": "h_out"}, None, r"expected an output of the type of the input 'x', .*got 'h_out'"),
        ({"h_in": "y"}, None, "expected an output of the type"),
        ({}, {"h_in": 0}, "unknown state 'h_in'"),
        (GRU_STATES, {"h": 0}, "state_init: unknown state 'h'"),
        (GRU_STATES, "ones", "expected 'zeros' or arrays by name, got 'ones'"),
        (GRU_STATES, {"h_in": np.zeros((2, 8), np.float32)}, r"expected the shape \(1, 8\), got \(2, 8\)"),
        (GRU_STATES, {"h_in": np.full((1, 8), "a")}, "expected numbers"),
    ],
)
def test_ties_that_do_not_fit_are_refused(states: Mapping[str, str], initial: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        mlfc.import_model(gru(), states=states, state_init=initial)


def test_a_tensor_is_tied_once_and_something_is_returned() -> None:
    with pytest.raises(OptionError, match="the output 'd1_next' is tied to state twice"):
        mlfc.import_model(delay_line(), states={"d1": "d1_next", "d2": "d1_next"})
    with pytest.raises(OptionError, match="every output is tied to state"):
        mlfc.import_model(delay_line(), states={**DELAYS, "x": "y"})


def test_options_of_the_command_line() -> None:
    assert parse_states(["h_in=h_out", "a=b=c"]) == {"h_in": "h_out", "a=b": "c"}
    for wrong in ("h_in", "=h", "h="):
        with pytest.raises(OptionError, match="expected NAME=OUTPUT"):
            parse_states([wrong])
    with pytest.raises(OptionError, match="the state 'h' is specified twice"):
        parse_states(["h=a", "h=b"])
    given = Inputs(None, None, ["one:h_in=h_out"], "zeros").by_model(["one", "two"])
    assert (given["one"].state, given["two"].state) == (["h_in=h_out"], [])
    with pytest.raises(OptionError, match="option --state-init requires a single model, or 'zeros'"):
        Inputs(None, None, None, "s.npz").by_model(["one", "two"])
    with pytest.raises(OptionError, match="option --state has no effect"):
        Inputs(None, None, ["a=b"], None).refuse("has no effect")


def test_initial_values_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "begin.npz"
    np.savez(path, h_in=np.arange(WIDTH, dtype=np.float32))
    given = Inputs(None, None, ["h_in=h_out"], str(path)).keywords()
    module, _ = mlfc.import_model(gru(), **given)
    assert module.states[0].initial is not None
    np.testing.assert_array_equal(module.states[0].initial, np.arange(WIDTH, dtype=np.float32).reshape(1, WIDTH))
    path.write_bytes(b"PK")
    with pytest.raises(MlfcError, match=r"cannot be read as \.npz"):
        Inputs(None, None, None, str(path)).keywords()


def test_a_state_is_written_in_place_where_nobody_reads_the_old_one_later() -> None:
    program = mlfc.compile(gru(), states=GRU_STATES, dry_run=True).factory.program
    (state,) = program.states
    writer = next(call for call in program.calls if call.output is state.written)
    assert state.before in writer.inputs  # element by element
    assert program.calls[-1].inputs == (state.written,)  # the sum reads the new value
    assert not any("copy" in kernel.name for kernel in program.kernels)


def test_a_window_is_shifted_in_its_place_where_code_knows_of_overlaps() -> None:
    factory = mlfc.compile(window(), "c -mcpu=cortex-m4", states=WINDOW).factory
    assert factory.plan.workspace_bytes == 0
    (state,) = factory.program.states
    assert factory.plan.aliased_inputs[0] == (state.before,)
    code = bytes(factory.code.files[f"src/{factory.module_name}_lib1.c"]).decode()
    head = next(line for line in code.splitlines() if "concatenate(const" in line)
    assert "restrict p1" in head
    assert "restrict p0" not in head
    assert "restrict output" not in head
    program = mlfc.compile(window(), states=WINDOW, executor="graph", dry_run=True).factory.program
    assert program.calls[-1].output is program.states[0].written
    assert len(program.calls) == 3


def test_values_that_are_no_calls_result_are_copied_without_losing_one() -> None:
    factory = mlfc.compile(delay_line(), states=DELAYS, dry_run=True).factory
    program, plan = factory.program, factory.plan
    for state in program.states:
        assert plan.offset(state.before) == plan.offset(state.written)
    assert plan.state_bytes == 16 + 12  # aligned to the largest power of two in a size, up to 16


def test_the_proof_finds_a_state_that_is_written_too_early() -> None:
    factory = mlfc.compile(delay_line(), states=DELAYS, dry_run=True).factory
    program, plan = factory.program, factory.plan
    prove(program, plan)
    writers = [call for call in program.calls if call.output in {state.written for state in program.states}]
    early = replace(program, instructions=(*writers, *(call for call in program.calls if call not in writers)))
    with pytest.raises(InternalError, match="are overwritten before they are read"):
        prove(early, plan)
    lost = replace(program, instructions=tuple(call for call in program.calls if call is not writers[-1]))
    with pytest.raises(InternalError, match="the next run does not find the new value of the state"):
        prove(lost, plan)
    first, second = program.states
    same = {**plan.state_offsets, second.before: 0, second.written: 0}
    with pytest.raises(InternalError):
        prove(program, replace(plan, state_offsets=same))
    assert first.initial is None


def test_states_count_as_ram() -> None:
    lean = mlfc.compile(delay_line(64), states=DELAYS, dry_run=True).factory
    assert lean.interface().memory.state_bytes == 512


def test_relay_text_keeps_ties() -> None:
    module, _ = mlfc.import_model(gru(), states=GRU_STATES)
    again = from_text(to_text(module, spans=True))
    assert [(state.input, state.output) for state in again.states] == [("h_in", "h_out")]
    for wrong, message in (('{"h_im": "h_out"}', "requires an input"), ('{"x": "h_out"}', "is of type")):
        text = to_text(module, spans=True).replace('{"h_in": "h_out"}', wrong)
        with pytest.raises(MlfcError, match=message):
            from_text(text)
    with pytest.raises(MlfcError, match="states must give outputs by inputs"):
        from_text(to_text(module, spans=True).replace('{"h_in": "h_out"}', '{"h_in": 1}'))


def test_modules_with_wrong_states_are_not_built() -> None:
    module, params = mlfc.import_model(gru())
    for states, message in (
        ((State("h_in", "h_out"), State("h_in", "y")), "the input 'h_in' belongs to two states"),
        ((State("h_in", "h_out", np.zeros(3)),), "initial values of the state 'h_in' have another type"),
        ((State("gate", "h_out"),), "is of type"),
    ):
        wrong = replace(module, states=states)
        assert any(message in fault for fault in state_faults(wrong))
        with pytest.raises(OptionError):
            mlfc.build(wrong, params=params, dry_run=True)
    with pytest.raises(OptionError, match="params must not contain a value for the state"):
        mlfc.build(replace(module, states=(State("h_in", "h_out"),)), params={**params, "h_in": np.zeros((1, 8))})


def test_a_pool_does_not_take_the_name_of_the_memory_of_states() -> None:
    with pytest.raises(OptionError, match="the memory name 'state' is reserved for the model's state"):
        mlfc.compile(gru(), states=GRU_STATES, pools=[mlfc.Pool("state")])


def test_the_header_says_what_is_kept() -> None:
    model = mlfc.compile(gru(), states=GRU_STATES, module_name="cell")
    header = bytes(model.factory.code.files["include/tvmgen_cell.h"]).decode()
    assert "#define TVMGEN_CELL_STATE_SIZE 32" in header
    assert "from byte 0: h_in: 1 x 8 float32" in header
    for declaration in ("state_reset(void)", "state_save(void *to)", "state_restore(const void *from)"):
        assert f"int32_t tvmgen_cell_{declaration};" in header


def test_commands_run_steps_and_carry_state(tmp_path: Path) -> None:
    onnx.save(gru(), tmp_path / "cell.onnx")
    steps = np.concatenate(frames(3))
    np.savez(tmp_path / "all.npz", x=steps)
    np.savez(tmp_path / "first.npz", x=steps[:1])
    np.savez(tmp_path / "rest.npz", x=steps[1:])
    tie = ("--state", "h_in=h_out")
    at = {"cwd": tmp_path}
    result = mlfc_command("run", "cell.onnx", *tie, "--inputs", "all.npz", "--outputs", "y.npz", "--json", **at)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["steps"] == 3
    expected = np.load(tmp_path / "y.npz")["y"]
    assert expected.shape == (3,)
    made = mlfc_command("compile", "cell.onnx", *tie, "--state-init", "zeros", "-o", "cell.tar", **at)
    assert "state" in made.stdout.splitlines()[-2]
    mlfc_command("run", "cell.tar", "--inputs", "first.npz", "--state-out", "held.npz", **at)
    result = mlfc_command(
        "run", "cell.tar", "--inputs", "rest.npz", "--state-in", "held.npz", "--outputs", "y.npz", **at
    )
    assert "2 steps; results of the last one:" in result.stdout
    np.testing.assert_allclose(np.load(tmp_path / "y.npz")["y"], expected[1:], atol=1e-6)
    shown = json.loads(mlfc_command("inspect", "cell.tar", "--json", **at).stdout)["modules"]["cell"]
    assert shown["memory"]["state_bytes"] == 4 * WIDTH
    assert [(item["name"], item["next"], item["bytes"]) for item in shown["states"]] == [("h_in", "h_out", 32)]
    tight = mlfc_command("compile", "cell.onnx", *tie, "--ram", "100", "-o", "tight.tar", **at)
    assert tight.returncode == 1
    assert "state 32" in tight.stderr


def test_verify_compares_steps(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime", reason="pip install 'mlfc[verify]'")
    onnx.save(gru(), tmp_path / "cell.onnx")
    begin = {"h_in": np.ones((1, WIDTH), np.float32)}
    result = verify(tmp_path / "cell.onnx", states=GRU_STATES, state_init=begin, samples=2, layers=True, target="llvm")
    assert result.is_within
    assert "h_out" in [item.tensor for item in result.layers]
    archive = mlfc.compile(gru(), "llvm", states=GRU_STATES, state_init=begin, module_name="cell").export(
        tmp_path / "cell.tar"
    )
    assert verify(tmp_path / "cell.onnx", archive, samples=2).is_within
    wrong = mlfc.compile(gru(), "llvm", states=GRU_STATES, module_name="cell").export(tmp_path / "wrong.tar")
    stepping = verify(tmp_path / "cell.onnx", wrong, samples=2)
    assert stepping.is_within  # the archive contains the initial state


def test_verify_needs_the_first_values_of_variables(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert", reason="pip install 'mlfc[verify]'")
    path = tmp_path / "stream.tflite"
    path.write_bytes(streaming_convolution())
    assert verify(path, samples=2, target="llvm").is_within
    archive = mlfc.compile(path, "llvm", state_init="zeros").export(tmp_path / "zeros.tar")
    for arguments in ((path, archive), (path,)):
        with pytest.raises(OptionError, match="the initial value of 'window' differs"):
            verify(*arguments, state_init="zeros", target="llvm")


def test_a_change_of_what_was_saved_is_seen(tmp_path: Path) -> None:
    paths = []
    for index, states in enumerate((DELAYS, dict(reversed(DELAYS.items())))):
        model = mlfc.compile(delay_line(), states=states, module_name="line")
        paths.append(model.export(tmp_path / f"line{index}.tar"))
    changes = mlfc.diff(*paths)["modules"]["line"]["interface"]
    assert [item["what"] for item in changes if item["level"] == "warning"] == ["saved states do not fit"]


def test_archives_with_wrong_states_are_found(tmp_path: Path) -> None:
    model = mlfc.compile(delay_line(), states=DELAYS, module_name="line")
    path = model.export(tmp_path / "line.tar")
    for old, new, message in (
        ('"offset": 16', '"offset": 8', "overlaps the state that ends at byte 12"),
        ('"state_bytes": 28', '"state_bytes": 29', "the states have 28"),
        (
            '"next": "d2_next",\n            "offset": 16',
            '"next": "d2_next",\n            "offset": null',
            "has no offset",
        ),
    ):
        changed = tmp_path / "changed.tar"
        with tarfile.open(path) as source, tarfile.open(changed, "w") as target:
            for member in source.getmembers():
                data = source.extractfile(member)
                content = data.read() if data else b""
                if member.name.endswith("metadata.json"):
                    assert old.encode() in content
                    content = content.replace(old.encode(), new.encode())
                    member.size = len(content)
                target.addfile(member, io.BytesIO(content))
        assert any(message in str(fault) for fault in mlfc.validate(changed)), message


def test_a_graph_names_its_states() -> None:
    text = mlfc.compile(gru(), executor="graph", states=GRU_STATES, dry_run=True).factory.graph_json
    document = json.loads(text)
    assert document["attrs"]["mlfc_states"] == ["list_int", [1]]
    kept = parse_graph(text).kept
    assert kept == {1}
    ids = document["attrs"]["storage_id"][1]
    writer = len(ids) - 1 - ids[::-1].index(ids[1])
    later = next(index for index, node in enumerate(document["nodes"]) if [writer, 0, 0] in node["inputs"])
    reading_old = [[1, 0, 0] if item == [writer, 0, 0] else item for item in document["nodes"][later]["inputs"]]
    for change, message in (
        (lambda graph: graph["attrs"].pop("mlfc_states"), "another tensor would be written over the input 'h_in'"),
        (lambda graph: graph["attrs"].update(mlfc_states=["list_int", [99]]), "node 99 is not one with the op 'null'"),
        (lambda graph: graph["attrs"].update(mlfc_states=["list_int", [writer]]), "is not one with the op 'null'"),
        (lambda graph: graph["attrs"].update(mlfc_states=["list_int", ["1"]]), "expected an integer"),
        (lambda graph: graph["attrs"].update(mlfc_states=["list_str", [1]]), "an unknown attribute"),
        (lambda graph: graph["attrs"]["dltype"][1].__setitem__(writer, "int32"), "with tensors of another type"),
        (lambda graph: graph["nodes"][later].update(inputs=reading_old), "would be written over entry 1, still in use"),
    ):
        changed = json.loads(text)
        change(changed)
        with pytest.raises(MlfcError, match=message):
            parse_graph(json.dumps(changed))


def test_an_executor_is_not_described_with_other_states() -> None:
    model = mlfc.compile(gru(), executor="graph", states=GRU_STATES)
    with pytest.raises(InputError, match="the graph has 1 states; its description lists 2"):
        model.model.executor.keys_of_states(["a", "b"])  # type: ignore[attr-defined]
