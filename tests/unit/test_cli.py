"""The commands: their output, files, side effects and exit status."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import helper

import mlfc as compiler
from mlfc.cli.main import run
from mlfc.library.toolchain import find_compiler
from mlfc.objfile.head import read_head
from tests.conftest import WATCHDOG

pytestmark = pytest.mark.usefixtures("unoptimized_builds")
ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"


@dataclass(frozen=True)
class Result:
    """The result of running the program."""

    returncode: int
    stdout: str
    stderr: str


def mlfc(*args: object, cwd: Path, **environment: str) -> Result:
    """Run the program in this process, which avoids importing it again."""
    out, err, status = io.StringIO(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.chdir(cwd)
        for name, value in environment.items():
            patch.setenv(name, value)
        patch.setattr(sys, "argv", ["mlfc", *map(str, args)])
        # so that interrupting the tests later does not call the program's handler
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            run()
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else 0
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return Result(status, out.getvalue(), err.getvalue())


def succeeded(*args: object, cwd: Path, **environment: str) -> str:
    result = mlfc(*args, cwd=cwd, **environment)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the compiled digits model in it."""
    place = tmp_path_factory.mktemp("cli")
    succeeded("compile", DIGITS, cwd=place)
    return place


def test_a_command_in_this_process_leaves_its_handlers_of_signals_nowhere(tmp_path: Path) -> None:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    succeeded("targets", cwd=tmp_path)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    "command", ["check", "compile", "run", "verify", "inspect", "diff", "validate", "operators", "targets", "devices"]
)
def test_every_command_has_help_with_examples(tmp_path: Path, command: str) -> None:
    text = succeeded(command, "--help", cwd=tmp_path)
    assert f"Examples:\n    mlfc {command}" in text
    assert f"  {command} " in succeeded("--help", cwd=tmp_path)


def test_compile_writes_the_archive_of_the_files_name_and_nothing_else(folder: Path) -> None:
    assert [path.name for path in folder.iterdir()] == ["digits.tar"]


def test_run_reads_and_writes_npz(folder: Path, tmp_path: Path) -> None:
    found = json.loads(succeeded("inspect", folder / "digits.tar", "--json", cwd=tmp_path))
    (tensor,) = found["modules"]["digits"]["inputs"]
    x = np.random.default_rng(0).random(tensor["shape"], np.float32)
    np.savez(tmp_path / "named.npz", **{tensor["name"]: x})
    np.savez(tmp_path / "unnamed.npz", x)
    results = []
    for name in ("named", "unnamed"):
        succeeded("run", folder / "digits.tar", "--inputs", f"{name}.npz", "--outputs", f"{name}_out.npz", cwd=tmp_path)
        with np.load(tmp_path / f"{name}_out.npz") as outputs:
            results.append({key: outputs[key] for key in outputs.files})
    (name,) = results[0]
    np.testing.assert_array_equal(results[0][name], results[1][name])
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(DIGITS, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(results[0][name], session.run([name], {tensor["name"]: x})[0], atol=1e-5)


def test_run_shows_the_same_for_the_same_seed_and_compiles_models_first(folder: Path, tmp_path: Path) -> None:
    def outputs(artifact: Path, seed: int) -> Any:
        text = succeeded("run", artifact, "--seed", seed, "--top", 2, "--json", cwd=tmp_path)
        return json.loads(text)["outputs"]

    assert outputs(folder / "digits.tar", 1) == outputs(DIGITS, 1)
    assert outputs(folder / "digits.tar", 1) != outputs(folder / "digits.tar", 2)
    (tensor,) = outputs(folder / "digits.tar", 1)
    assert tensor["top"][0]["value"] == pytest.approx(tensor["max"])


def test_run_repeats_and_shows_times(folder: Path, tmp_path: Path) -> None:
    text = succeeded("run", folder / "digits.tar", "--repeat", 5, "--json", cwd=tmp_path)
    times = json.loads(text)["time"]
    assert times["runs"] == 5
    assert 0 < times["min_ms"] <= times["median_ms"]


def test_profile_lists_operators_from_the_slowest(folder: Path, tmp_path: Path) -> None:
    archive = folder / "digits.tar"
    listed = json.loads(succeeded("inspect", archive, "--json", cwd=tmp_path))["modules"]["digits"]["operators"]
    found = json.loads(succeeded("run", archive, "--profile", "--json", "--repeat", 3, cwd=tmp_path))
    assert found["time"]["runs"] == 3
    rows = found["operators"]
    assert sorted(row["index"] for row in rows) == list(range(len(listed)))
    assert all(row["nodes"] == listed[row["index"]]["nodes"] for row in rows)
    times = [row["median_us"] for row in rows]
    assert times == sorted(times, reverse=True)
    assert {row["bound"] for row in rows} <= {"compute", "memory"}
    assert all(row["share_of_peak"] > 0 and row["bytes"] and row["tensors"] for row in rows)
    files = ("--profile-html", "p.html", "--trace", "t.json")
    text = succeeded("run", archive, "--top", 2, "--outputs", "out.npz", *files, cwd=tmp_path)
    assert "the slowest 2 take" in text
    assert text.count("tvmgen_digits_") == 2
    assert (tmp_path / "out.npz").exists()
    assert (tmp_path / "p.html").read_text().count("<tr>") == 1 + len(listed)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "operator" for event in events) == 10 * len(listed)
    refused = mlfc("run", archive, "--board", "mps2-an386", "--trace", "t.json", cwd=tmp_path)
    assert refused.returncode == 2
    assert "require a run on this machine" in refused.stderr


@pytest.mark.parametrize(("name", "named"), [("d.so", "so"), ("d.a", "a"), ("d.tar", "mlf"), ("d.lib", "mlf")])
def test_the_name_of_the_output_says_what_is_made(name: str, named: str, tmp_path: Path) -> None:
    for folder, options in (("a", ()), ("b", ("--emit", named))):
        (tmp_path / folder).mkdir()
        succeeded("compile", DIGITS, "-o", name, *options, cwd=tmp_path / folder)
    made, asked = ({path.name: path.read_bytes() for path in (tmp_path / folder).iterdir()} for folder in "ab")
    assert made == asked
    assert tarfile.is_tarfile(tmp_path / "a" / name) == (named == "mlf")


def test_a_shared_library_runs_like_the_archive(folder: Path, tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "--emit", "so", cwd=tmp_path)
    ours, theirs = (
        json.loads(succeeded("run", artifact, "--json", cwd=tmp_path))["outputs"]
        for artifact in ("digits.so", folder / "digits.tar")
    )
    assert ours == theirs
    refused = mlfc("run", "digits.so", "--profile", cwd=tmp_path)
    assert refused.returncode == 2
    assert "Profile the archive" in refused.stderr


def test_c_files_are_those_of_the_archive(folder: Path, tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "--emit", "c", "-o", "code", "--module-name", "digits", cwd=tmp_path)
    found = json.loads(succeeded("inspect", folder / "digits.tar", "--json", cwd=tmp_path))["files"]
    expected = {file["path"].removeprefix("codegen/host/") for file in found if file["path"].startswith("codegen/")}
    files = {str(path.relative_to(tmp_path / "code")) for path in (tmp_path / "code").rglob("*") if path.is_file()}
    assert files == expected


def test_objects_link_with_a_program(tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "--emit", "o", "-o", "built", "--module-name", "digits", cwd=tmp_path)
    program = "#include <tvmgen_digits.h>\nint main(void) { return tvmgen_digits_run(0, 0) == -1 ? 0 : 1; }\n"
    (tmp_path / "main.c").write_text(program)
    objects = sorted(map(str, (tmp_path / "built" / "lib").glob("*.o")))
    command = [*find_compiler().command, "-I", "built/include", "main.c", *objects, "-lm", "-o", "main"]
    subprocess.run(command, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], check=True)


def test_several_models_make_one_archive(tmp_path: Path) -> None:
    succeeded("compile", f"one={DIGITS}", f"two={DIGITS}", "-o", "both.tar", cwd=tmp_path)
    assert set(json.loads(succeeded("inspect", "both.tar", "--json", cwd=tmp_path))["modules"]) == {"one", "two"}
    succeeded("run", "both.tar", "--module", "two", cwd=tmp_path)
    refused = mlfc("run", "both.tar", cwd=tmp_path)
    assert refused.returncode == 2
    assert "one, two" in refused.stderr


def save_open_model(path: Path) -> None:
    """Write an ONNX model whose input ``a:b`` has a dynamic dimension."""
    data, result = (helper.make_tensor_value_info(name, 1, ["N", 4]) for name in ("a:b", "y"))
    graph = helper.make_graph([helper.make_node("Relu", ["a:b"], ["y"])], "open", [data], [result])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def test_shapes_go_to_the_models_that_they_name(tmp_path: Path) -> None:
    save_open_model(tmp_path / "open.onnx")
    assert "a:b" in mlfc("compile", "open.onnx", "--executor", "aot", cwd=tmp_path).stderr
    succeeded("compile", "open.onnx", cwd=tmp_path)
    succeeded("compile", "open.onnx", "--shape", "a:b=2,4", cwd=tmp_path)
    shapes = ("--shape", "one:a:b=3,4", "--shape", "two:a:b=5,4")
    succeeded("compile", "one=open.onnx", "two=open.onnx", *shapes, "-o", "both.tar", cwd=tmp_path)
    modules = json.loads(succeeded("inspect", "both.tar", "--json", cwd=tmp_path))["modules"]
    assert {name: module["inputs"][0]["shape"] for name, module in modules.items()} == {"one": [3, 4], "two": [5, 4]}


def test_tables_name_tensors_and_memory(folder: Path, tmp_path: Path) -> None:
    text = succeeded("inspect", folder / "digits.tar", "--files", cwd=tmp_path)
    for part in ("module digits: aot", "float32[", "workspace", "tvmgen_digits_", "codegen/host/src/digits_lib1.c"):
        assert part in text
    assert "good" in succeeded("validate", folder / "digits.tar", cwd=tmp_path)
    assert "nn.conv2d" in succeeded("operators", cwd=tmp_path)
    assert "cortex-m4" in succeeded("targets", cwd=tmp_path)


def test_verify_compares_with_the_reference(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = json.loads(succeeded("verify", DIGITS, folder / "digits.tar", "--samples", 2, "--json", cwd=tmp_path))
    assert result["reference"] == "ONNX Runtime"
    assert result["samples"] == 5
    layers = json.loads(succeeded("verify", DIGITS, "--layers", "--samples", 1, "--json", cwd=tmp_path))["layers"]
    assert len(layers) > len(result["outputs"])


def test_a_budget_says_what_it_counts_and_what_is_over(folder: Path, tmp_path: Path) -> None:
    module = json.loads(succeeded("inspect", folder / "digits.tar", "--json", cwd=tmp_path))["modules"]["digits"]
    memory = module["memory"]
    ram = memory["workspace_bytes"] + memory["io_bytes"]
    tiled = json.loads(succeeded("compile", DIGITS, "--ram", ram - 7, "--json", cwd=tmp_path))["modules"]["digits"]
    assert tiled["stripes"]["workspace_bytes_without"] == memory["workspace_bytes"]
    result = mlfc("compile", DIGITS, "--ram", 297, cwd=tmp_path)
    found = re.search(
        r"([\d,]+) bytes of RAM exceed the budget of 297 by ([\d,]+) bytes: workspace ([\d,]+)", result.stderr
    )
    assert found
    used, over, workspace = (int(text.replace(",", "")) for text in found.groups())
    assert (used - over, used - workspace) == (297, 0)
    assert workspace < tiled["stripes"]["workspace_bytes_without"]
    assert module["peak"]["nodes"][0] in result.stderr
    tight = succeeded("compile", DIGITS, "--ram", workspace, cwd=tmp_path)
    assert f"{memory['io_bytes']:,} bytes, belong to the caller" in tight
    assert f"{workspace + memory['io_bytes']:,} bytes in total" in tight
    flash = memory["constants_bytes"]
    result = mlfc("compile", DIGITS, "--flash", flash - 7, cwd=tmp_path)
    assert f"{flash:,} bytes of constants exceed the budget of {flash - 7:,} by 7 bytes" in result.stderr
    assert "excluding machine code" in result.stderr
    succeeded("compile", DIGITS, "--ram", ram, "--flash", flash, cwd=tmp_path)
    result = mlfc("compile", f"a={DIGITS}", f"b={DIGITS}", "--ram", 10, "-o", "both.tar", cwd=tmp_path)
    assert "for module 'a'" in result.stderr


@pytest.mark.parametrize("budget", ["--ram", "--flash"])
def test_a_budget_that_is_not_met_fails_with_status_1(tmp_path: Path, budget: str) -> None:
    result = mlfc("compile", DIGITS, budget, 10, cwd=tmp_path)
    assert result.returncode == 1
    assert "exceed the budget of 10 by" in result.stderr
    assert "largest" in result.stderr
    assert list(tmp_path.iterdir()) == []
    succeeded("compile", DIGITS, budget, 10_000_000, cwd=tmp_path)


FAULTS: dict[str, tuple[tuple[object, ...], str]] = {
    "no_such_model": (("compile", "none.tflite"), "file not found"),
    "a_name_that_no_file_can_have": (("compile", "m" * 300), "File name too long"),
    "a_module_with_a_space": (("compile", f"my model={__file__}"), "invalid module name 'my model'"),
    "no_such_artifact": (("run", "none.tar"), "No such file"),
    "not_a_model": (("compile", __file__), "test_cli"),
    "a_model_that_is_a_folder": (("compile", ROOT), "folder"),
    "not_an_archive": (("inspect", __file__), "not an ONNX model"),
    "missing_folder_of_the_output": (("compile", DIGITS, "-o", "no/a.tar"), "does not exist"),
    "output_that_is_a_folder": (("compile", DIGITS, "-o", "."), "directory"),
    "unknown_target": (("compile", DIGITS, "--target", "z80"), "z80"),
    "unknown_executor": (("compile", DIGITS, "--executor", "jit"), "jit"),
    "unknown_form": (("compile", DIGITS, "--emit", "exe"), "exe"),
    "archive_named_as_a_library": (("compile", DIGITS, "--emit", "mlf", "-o", "d.so"), "Name it d.tar"),
    "archive_named_as_an_object": (("compile", DIGITS, "-o", "d.o"), "--emit o for objects in a folder"),
    "unknown_goal": (("compile", DIGITS, "--optimize", "beauty"), "beauty"),
    "unknown_numerics": (("compile", DIGITS, "--numerics", "abacus"), "abacus"),
    "unknown_option": (("compile", DIGITS, "--frobnicate"), "--frobnicate"),
    "unknown_command": (("frobnicate",), "frobnicate"),
    "shape_that_is_none": (("compile", DIGITS, "--shape", "x=b-g"), "expected NAME=1,3,224,224, got 'x=b-g'"),
    "shape_with_zero": (("compile", DIGITS, "--shape", "x=0,1"), "expected NAME=1,3,224,224, got 'x=0,1'"),
    "shape_of_no_input": (("compile", DIGITS, "--shape", "bogus=1,2"), "bogus"),
    "two_models_of_one_name": (("compile", f"a={DIGITS}", f"a={DIGITS}", "-o", "a.tar"), "name 'a'"),
    "several_models_without_output": (("compile", f"a={DIGITS}", f"b={DIGITS}"), "-o"),
    "negative_budget": (("compile", DIGITS, "--ram", "-1"), "expected bytes such as 65536, 64k or 1M, got '-1'"),
    "budget_in_no_unit": (("compile", DIGITS, "--ram", "64q"), "expected bytes such as 65536, 64k or 1M, got '64q'"),
    "pool_in_no_unit": (("compile", DIGITS, "--pool", "a=64q"), "such as dtcm=65536 or dtcm=64k"),
    "no_runs": (("run", DIGITS, "--repeat", "0"), "--repeat"),
    "unknown_fill": (("run", DIGITS, "--fill", "sevens"), "sevens"),
    "missing_inputs": (("run", DIGITS, "--inputs", "none.npz"), "none.npz"),
    "inputs_that_are_no_npz": (("run", DIGITS, "--inputs", __file__), "numpy.savez"),
    "module_of_a_model": (("run", DIGITS, "--module", "a"), "--module"),
    "shape_for_no_model": (("compile", f"a={DIGITS}", f"b={DIGITS}", "-o", "a.tar", "--shape", "x=1"), "a, b"),
    "shape_for_one_model_that_fits_none": (
        ("compile", f"a={DIGITS}", f"b={DIGITS}", "-o", "a.tar", "--shape", "b:bogus=1"),
        "unknown input 'bogus'",
    ),
    "target_of_an_artifact": (("verify", DIGITS, DIGITS, "--target", "c -mcpu=cortex-m4"), "compiled artifact"),
    "unknown_numerics_to_verify": (("verify", DIGITS, "--numerics", "abacus"), "abacus"),
    "library_for_a_board": (("compile", DIGITS, "--emit", "so", "--board", "mps2-an386"), "--emit o"),
    "static_library_for_a_board": (("compile", DIGITS, "--emit", "a", "--board", "mps2-an386"), "--emit o"),
    "library_named_as_for_another_system": (
        ("compile", DIGITS, "--emit", "so", "--triple", "x86_64-linux-gnu", "-o", "d.dll"),
        "Name it d.so",
    ),
    "code_beside_none": (("compile", DIGITS, "--target-host", "llvm"), "--target-host"),
    "unknown_generator": (("compile", DIGITS, "--byoc", "vela"), "known: 'cmsis_nn', 'onnxruntime'"),
    "unknown_generator_to_check": (("check", DIGITS, "--byoc", "vela"), "known: 'cmsis_nn', 'onnxruntime'"),
    "unknown_convention": (("compile", DIGITS, "--emit", "so", "--abi", "stdcall"), "classic, ffi"),
    "unknown_machine": (("compile", DIGITS, "--emit", "so", "--triple", "pdp11"), "aarch64-linux-gnu"),
    "convention_of_no_library": (("compile", DIGITS, "--abi", "ffi"), "--emit so"),
    "unknown_kind_of_device": (("run", DIGITS, "--device", "abacus"), "unknown kind of device"),
    "number_of_no_device": (("run", DIGITS, "--device", "opencl:first"), "opencl:0"),
    "negative_samples": (("verify", DIGITS, "--samples", "-1"), "samples"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_users_fault_gives_one_message_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    args, message = FAULTS[name]
    result = mlfc(*args, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert re.search(r" \[MLF\d{3}\]$", result.stderr.splitlines()[0]) or "Usage:" in result.stderr
    assert "Traceback" not in result.stderr
    assert "bug in mlfc" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def broken_model(kind: str, folder: Path) -> Path:
    """Return an invalid model file in a separate folder."""
    path = folder / "models" / f"broken.{kind}"
    path.parent.mkdir()
    contents = {
        "onnx": DIGITS.read_bytes()[:1000],
        "tflite": b"\x1c\0\0\0TFL3" + bytes(8),
        "relay": b'#[version = "0.0.5"]\ndef @main(%x',
        "empty": b"",
    }
    path.write_bytes(contents[kind])
    return path


def test_the_default_output_replaces_earlier_ones_only_and_says_so(tmp_path: Path) -> None:
    assert "replacing the earlier one" not in succeeded("compile", DIGITS, cwd=tmp_path)
    assert "replacing the earlier one" in succeeded("compile", DIGITS, cwd=tmp_path)
    (tmp_path / "digits.tar").write_bytes(b"my notes")
    result = mlfc("compile", DIGITS, cwd=tmp_path)
    assert (result.returncode, (tmp_path / "digits.tar").read_bytes()) == (2, b"my notes")
    assert "not created by mlfc" in result.stderr


def test_a_report_replaces_reports_only(tmp_path: Path) -> None:
    (tmp_path / "digits.html").write_bytes(b"my notes")
    assert "digits.html: exists, not created by mlfc" in mlfc("report", DIGITS, cwd=tmp_path).stderr
    succeeded("report", DIGITS, "-o", "digits.html", cwd=tmp_path)
    assert "digits.html, replacing the earlier one, " in succeeded("report", DIGITS, cwd=tmp_path)


def test_the_first_commands_of_the_readme_print_what_it_shows(tmp_path: Path) -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    commands = re.findall(r"^    (mlfc [^#\n]+?) +#", page, re.MULTILINE)
    printed = [succeeded(*line.split()[1:], cwd=tmp_path) for line in commands]
    assert [line.split()[1] for line in commands] == ["examples", "compile", "run"]
    for text in printed[1:]:
        assert textwrap.indent(text, "    ").rstrip() in page


def test_examples_keep_other_files_and_are_evaluated(tmp_path: Path) -> None:
    assert "try/digits.onnx" in succeeded("examples", "try", cwd=tmp_path)
    succeeded("examples", "try", cwd=tmp_path)
    with np.load(tmp_path / "try" / "held_out.npz") as data:
        images, labels = data["image"], np.load(tmp_path / "try" / "labels.npy")
    model = compiler.compile(compiler.examples.digits())
    found = [model.run(image)["probabilities"].argmax() for image in images]
    right = int((np.array(found) == labels).sum())
    assert right >= 0.97 * len(images)
    (tmp_path / "try" / "labels.npy").write_bytes(b"mine")
    assert (
        "labels.npy: exists, not created by mlfc. Name another folder" in mlfc("examples", "try", cwd=tmp_path).stderr
    )


def test_names_keep_what_is_not_the_suffix_of_a_model(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        shutil.copy(DIGITS, tmp_path / f"net.{version}.onnx")
        assert f"net_{version}" in succeeded("compile", f"net.{version}.onnx", cwd=tmp_path)
    assert {"net.v1.tar", "net.v2.tar"} <= {path.name for path in tmp_path.iterdir()}
    models = ("net.v1.onnx", "net.v2.onnx")
    succeeded("compile", *models, "--executor", "net.v2=graph", "-o", "both.tar", cwd=tmp_path)
    modules = json.loads(succeeded("inspect", "both.tar", "--json", cwd=tmp_path))["modules"]
    assert {name: module["executor"] for name, module in modules.items()} == {"net_v1": "aot", "net_v2": "graph"}


def test_a_processor_is_a_target_and_sizes_have_units(tmp_path: Path) -> None:
    succeeded("compile", DIGITS, "--target", "cortex-m4", "--ram", "64kb", "-o", "short.tar", cwd=tmp_path)
    (tmp_path / "build.toml").write_text('target = "c -mcpu=cortex-m4"\nram = "64K"\n', encoding="utf-8")
    succeeded("compile", DIGITS, "--config", "build.toml", "-o", "long.tar", cwd=tmp_path)
    assert (tmp_path / "short.tar").read_bytes() == (tmp_path / "long.tar").read_bytes()


@pytest.mark.parametrize("kind", ["onnx", "tflite", "relay", "empty"])
@pytest.mark.parametrize("command", ["compile", "check", "run"])
def test_a_broken_model_is_named_by_the_path_that_the_user_gave(tmp_path: Path, kind: str, command: str) -> None:
    path = broken_model(kind, tmp_path).relative_to(tmp_path)
    result = mlfc(command, path, cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {path}: ")


def test_verify_asks_for_the_original_model(folder: Path, tmp_path: Path) -> None:
    result = mlfc("verify", folder / "digits.tar", cwd=tmp_path)
    assert result.returncode == 2
    assert "mlfc verify MODEL ARTIFACT" in result.stderr


def test_a_device_as_output_is_written_and_stays(tmp_path: Path) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    # links, so that a bug replaces them and not the machine's devices
    for device in ("full", "null"):
        (tmp_path / device).symlink_to(f"/dev/{device}")
    for options in (("compile", DIGITS, "-o"), ("compile", DIGITS, "--emit", "so", "-o"), ("run", DIGITS, "--outputs")):
        result = mlfc(*options, "full", cwd=tmp_path)
        assert (result.returncode, "No space left" in result.stderr) == (2, True), result
        succeeded(*options, "null", cwd=tmp_path)
    assert all((tmp_path / device).is_char_device() for device in ("full", "null"))


def test_a_module_name_is_an_identifier(tmp_path: Path) -> None:
    for name, accepted in {"../My Model": "n___my_model", "1 bad-name": "n1_bad_name"}.items():
        refused = mlfc("compile", DIGITS, "--module-name", name, cwd=tmp_path)
        assert f"expected letters, digits and underscores, got '{name}'. Use {accepted} [" in refused.stderr
    assert not [*tmp_path.iterdir()]
    succeeded("compile", DIGITS, "--module-name", "My_Model", cwd=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["my_model.tar"]


def test_compile_tells_what_generators_logs_and_levels_did(tmp_path: Path) -> None:
    m4 = ("--target", "c -mcpu=cortex-m4", "-o", "m4.tar", "--byoc", "cmsis_nn")
    text = succeeded("compile", DIGITS.with_name("digits_int8.tflite"), *m4, "--numerics", "tflm", cwd=tmp_path)
    assert text.endswith("cmsis_nn: 3 of 4 nodes\n")
    none = mlfc("compile", DIGITS, *m4, cwd=tmp_path)
    message = "warning: --byoc cmsis_nn: no node is for it; mlfc compiled all 6\n"
    assert (none.returncode, none.stderr) == (0, message)
    (tmp_path / "tune.jsonl").write_text("")
    text = succeeded("compile", DIGITS, "-o", "d.so", "--tuned", "tune.jsonl", cwd=tmp_path)
    assert re.search(r"^tune\.jsonl: values for 0 of \d kernels$", text, re.MULTILINE)
    assert re.search(r"\Acompiling for (\d) processor levels; .* 1/\1 of the time: ", text, re.MULTILINE)


def test_tflm_numerics_are_compared_with_litert_and_differ_where_they_must(tmp_path: Path, models: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    model = models / "ad01_int8.tflite"
    succeeded("verify", model, "--samples", 1, cwd=tmp_path)
    result = mlfc("verify", model, "--samples", 1, "--numerics", "tflm", cwd=tmp_path)
    assert result.returncode == 1
    assert "DIFFERS" in result.stdout
    assert "--numerics tflm" in result.stderr


def test_the_package_runs_as_a_program(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mlfc"]
    done = subprocess.run([*command, "targets", "--json"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "cortex-m4" in json.loads(done.stdout)["cpus"]
    done = subprocess.run([*command, "run", "none.tar"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "error: none.tar: cannot be read: No such file or directory [MLF140]\n",
    )


def test_wrong_inputs_are_all_named(folder: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", bogus=np.zeros(3), other=np.zeros(2))
    result = mlfc("run", folder / "digits.tar", "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
    assert result.returncode == 2
    for part in ("bogus", "other", "the input is missing"):
        assert part in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.npz"]


def test_a_damaged_archive_is_listed_by_validate(folder: Path, tmp_path: Path) -> None:
    data = bytearray((folder / "digits.tar").read_bytes())
    at = data.rindex(b"return 0;")
    data[at : at + 9] = b"return 1;"
    (tmp_path / "damaged.tar").write_bytes(bytes(data))
    result = mlfc("validate", "damaged.tar", cwd=tmp_path)
    assert result.returncode == 2
    assert "SHA-256 differs" in result.stderr


# compiles once per signal, each time in a forked process that pauses in the middle of writing
INTERRUPTED = """
import os, signal, sys, time
import mlfc.archive.write.export as export
import mlfc.cli.main as main

def pause(file, *_):
    file.write(b"half")
    os.write(1, b"%d\\n" % os.getpid())  # a signal in the middle of `print` would repeat the line
    time.sleep(600)

export.write_tar = pause
for number in map(int, sys.argv[2:]):
    child = os.fork()
    if not child:
        # as if the tests' parents did not ignore signals, as `nohup` does
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        sys.argv[1:] = ["compile", sys.argv[1]]
        main.run()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def test_an_interrupted_compilation_leaves_nothing(tmp_path: Path) -> None:
    statuses = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}
    command = [sys.executable, "-c", INTERRUPTED, str(DIGITS), *(str(int(number)) for number in statuses)]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, status in statuses.items():
            os.kill(int(process.stdout.readline()), number)
            assert int(process.stdout.readline()) == status
            assert list(tmp_path.iterdir()) == []
        assert process.wait(WATCHDOG) == 0


def test_objects_for_a_board_are_made_by_its_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    folder = tmp_path / "objects"
    if shutil.which("arm-none-eabi-gcc") is None:
        result = mlfc("compile", DIGITS, "--emit", "o", "--board", "mps2-an386", "-o", folder, cwd=tmp_path)
        assert (result.returncode, "apt-get install" in result.stderr) == (2, True)
        assert list(tmp_path.iterdir()) == []
        return
    succeeded("compile", DIGITS, "--emit", "o", "--board", "mps2-an386", "-o", folder, cwd=tmp_path)
    heads = [read_head(path.read_bytes()) for path in (folder / "lib").iterdir()]
    assert heads
    assert all(head is not None and (head.kind, head.arches) == ("object", ("arm",)) for head in heads)


@pytest.mark.parametrize("emit", ["c", "o", "so"])
def test_options_of_archives_are_refused_where_none_is_made(tmp_path: Path, emit: str) -> None:
    result = mlfc("compile", DIGITS, "--emit", emit, "--rfc", "--test-vectors", 2, cwd=tmp_path)
    assert result.returncode == 2
    assert "--test-vectors, --rfc: this option requires --emit mlf. " in result.stderr
    result = mlfc("compile", DIGITS, "--emit", emit, "--system-lib", cwd=tmp_path)
    assert result.returncode == 2
    assert "--system-lib: this option requires --emit mlf, a, tar" in result.stderr
    assert list(tmp_path.iterdir()) == []
