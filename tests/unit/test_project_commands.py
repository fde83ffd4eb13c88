"""``mlfc project``: its output and exit status."""

from __future__ import annotations

import json
import os
import stat
import sys
from pathlib import Path

import onnx
import pytest

from mlfc.micro.board.board import find_board
from tests.state_models import gru
from tests.unit.test_cli import DIGITS, mlfc, succeeded
from tests.unit.test_project_client import ANSWERS, HEAD

TOOL = """\
#!/bin/sh
echo "$0 $*" > called
echo looking for the probe
{ending}
"""


def board_with_tool(folder: Path, command: str) -> Path:
    """Write a board file whose flash tool is a command."""
    text = find_board("mps2-an386").text.replace('name = "mps2-an386"', 'name = "mine"', 1)
    path = folder / "mine.toml"
    path.write_text(f'{text}\n[serial]\nbaud = 115200\n\n[flash_tool]\ncommand = {command}\ninstall = "Get it there"\n')
    return path


def tool(folder: Path, ending: str) -> None:
    path = folder / "bin" / "flash-it"
    path.parent.mkdir(exist_ok=True)
    path.write_text(TOOL.format(ending=ending))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


@pytest.fixture
def flashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project that looks built, for a board with a flash tool."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    board = board_with_tool(tmp_path, '["flash-it", "--port={port}", "--file", "{elf}"]')
    succeeded(
        "project", "create", DIGITS, "made", "--template", "makefile", "--board", board, "--trust-board", cwd=tmp_path
    )
    return tmp_path


def test_a_flash_tool_gets_the_file_and_the_port(flashed: Path) -> None:
    (flashed / "made" / "firmware.elf").write_text("built")
    tool(flashed, "exit 0")
    succeeded("project", "flash", "made", "--option", "port=/dev/ttyX", cwd=flashed)
    called = (flashed / "made" / "called").read_text()
    assert called.endswith("flash-it --port=/dev/ttyX --file firmware.elf\n")


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project whose build calls a make that only prints its arguments."""
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    for name in ("make", "arm-none-eabi-gcc"):
        tool(tmp_path, "exit 5")
        (tmp_path / "bin" / "flash-it").rename(tmp_path / "bin" / name)
    options = ("--template", "makefile", "--board", "mps2-an386", "--option", "trace=true")
    succeeded("project", "create", DIGITS, "made", *options, cwd=tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("verbose=off", "-j2 TRACE=1"),
        ("trace=false", "-j2"),
        ("trace=yes", "-j2 TRACE=1"),
        ("stack_bytes=4096", "-j2 STACK_BYTES=4096 TRACE=1"),
    ],
)
def test_options_of_the_build_have_their_types(made: Path, option: str, arguments: str) -> None:
    mlfc("project", "build", "made", "--option", option, cwd=made)
    assert (made / "made" / "called").read_text().strip().endswith(f"make {arguments}")


@pytest.mark.parametrize(
    ("option", "message"),
    [("verbose=maybe", "true or false"), ("stack_bytes=many", "an integer"), ("stack_bytes=-1", "at least 0")],
)
def test_options_of_the_build_of_another_type_are_refused(made: Path, option: str, message: str) -> None:
    result = mlfc("project", "build", "made", "--option", option, cwd=made)
    assert result.returncode == 2
    assert message in result.stderr
    assert not (made / "made" / "called").exists()


@pytest.mark.parametrize(
    ("ending", "options", "message"),
    [
        (
            "echo no probe found >&2; exit 7",
            ("port=COM3",),
            "flash-it ended with status 7: [MLF180]\n  looking for the probe\n",
        ),
        (None, ("port=COM3",), "flash-it is not on the PATH. Get it there"),
        ("exit 0", (), "the board's port was not found. Name it by the option port"),
    ],
    ids=["fails", "missing", "no_port"],
)
def test_flashing_that_fails_is_one_message(
    flashed: Path, ending: str | None, options: tuple[str, ...], message: str
) -> None:
    (flashed / "made" / "firmware.elf").write_text("built")
    if ending is not None:
        tool(flashed, ending)
    given = [word for option in options for word in ("--option", option)]
    result = mlfc("project", "flash", "made", *given, cwd=flashed)
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_steps_come_after_the_build(flashed: Path) -> None:
    for step in ("flash", "run"):
        result = mlfc("project", step, "made", cwd=flashed)
        assert (result.returncode, result.stdout) == (2, "")
        assert "Could not find a build in made. Build it: mlfc project build made" in result.stderr


def test_a_missing_compiler_is_named_with_its_packages(flashed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # only Python remains, and make, which the server needs
    place = flashed / "only"
    place.mkdir()
    (place / "make").symlink_to("/usr/bin/make")
    monkeypatch.setenv("PATH", str(place))
    result = mlfc("project", "build", "made", cwd=flashed)
    assert result.returncode == 2
    assert (
        "arm-none-eabi-gcc is not on the PATH. Install it; on Debian: apt-get install gcc-arm-none-eabi"
        in result.stderr
    )
    (place / "make").unlink()
    (place / "arm-none-eabi-gcc").symlink_to("/bin/false")
    result = mlfc("project", "build", "made", cwd=flashed)
    assert "make is not on the PATH. Install it; on Debian: apt-get install make" in result.stderr


def test_templates_are_listed_with_their_options(tmp_path: Path) -> None:
    text = succeeded("project", "list", cwd=tmp_path)
    for part in ("makefile", "cmake", "package", "options of all templates", "stack_bytes", "generate_project"):
        assert part in text
    assert text == succeeded("project", "create", "--list-options", cwd=tmp_path)
    listed = json.loads(succeeded("project", "list", "--json", cwd=tmp_path))
    assert listed["makefile"]["is_built_by_tests"] is True
    (board,) = (option for option in listed["package"]["options"] if option["name"] == "board")
    assert (board["default"], board["required"]) == ("host", None)


def test_a_model_is_imported_with_its_states(tmp_path: Path) -> None:
    onnx.save(gru(), tmp_path / "gru.onnx")
    wanted = ("--template", "makefile", "--board", "host")
    succeeded("project", "create", "gru.onnx", "fw", *wanted, "--state", "h_in=h_out", cwd=tmp_path)
    details = json.loads(succeeded("inspect", tmp_path / "fw" / "model.tar", "--json", cwd=tmp_path))["modules"]["gru"]
    assert ([item["name"] for item in details["inputs"]], details["memory"]["state_bytes"]) == (["x"], 32)
    refused = mlfc("project", "create", "fw/model.tar", "fw2", *wanted, "--state", "h_in=h_out", cwd=tmp_path)
    assert "option --state requires a model; the inputs of an archive are static" in refused.stderr
    assert not (tmp_path / "fw2").exists()


def test_what_was_made_is_said(tmp_path: Path) -> None:
    command = ("project", "create", DIGITS, "made", "--template", "package", "--json")
    said = json.loads(succeeded(*command, cwd=tmp_path))
    assert said == {"project": "made", "template": "package", "board": "host", "module": "digits"}


def test_projects_of_other_tools_are_driven_too(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    server = tmp_path / "theirs" / "microtvm_api_server.py"
    server.write_text(HEAD + ANSWERS)
    for step in ("build", "flash"):
        text = succeeded("project", step, "theirs", "--option", "port=COM3", cwd=tmp_path)
        assert text.startswith("theirs: ")
    server.write_text("import sys\nsys.exit('it broke')\n")
    result = mlfc("project", "build", "theirs", cwd=tmp_path)
    assert result.returncode == 2
    assert "the API server ended with status 1 instead of answering server_info_query" in result.stderr


FAULTS = {
    "unknown_template": (
        ("create", DIGITS, "made", "--template", "makefil", "--board", "host"),
        "unknown project template 'makefil'; nearest: 'makefile'",
    ),
    "no_board": (("create", DIGITS, "made", "--template", "makefile"), "Option 'board' is required"),
    "an_option_without_value": (
        ("create", DIGITS, "made", "--template", "makefile", "--option", "cflags"),
        "Invalid option format: cflags. Please use OPTION=VALUE.",
    ),
    "no_such_model": (("create", "none.tar", "made", "--template", "package"), "none.tar"),
    "a_library": (
        ("create", sys.executable, "made", "--template", "package"),
        "expected an archive or a model, got a shared library",
    ),
    "no_parent": (("create", DIGITS, "no/made", "--template", "package"), "does not exist"),
    "no_project": (("build", "."), "this is not a firmware project"),
    "no_project_to_run": (("run", "."), "this is not a firmware project"),
    "no_time": (("run", ".", "--timeout", "0"), "--timeout"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_users_fault_is_one_message_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    arguments, message = FAULTS[name]
    result = mlfc("project", *arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert "bug in mlfc" not in result.stderr
    assert (result.stdout, list(tmp_path.iterdir())) == ("", [])
