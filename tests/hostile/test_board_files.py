"""Board files from third parties: no program that they name runs until the user trusts them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import mlfc
from mlfc.errors import MlfcError, OptionError, ToolchainError
from mlfc.micro.board.board import boards, find_board
from mlfc.micro.board.programs import environment, need
from mlfc.micro.project.generate import generate_project
from tests.native.extracted import imported
from tests.unit.test_cli import mlfc as program

GOOD = boards().get("mps2-an386").text
FLAG = '"-mthumb"'
PREFIX = 'prefix = "arm-none-eabi-"'
LINK = '"-nostartfiles"'
PROGRAM = 'program = "qemu-system-arm"'
MACHINE = 'machine = "mps2-an386"'
# what each file would have run, loaded, or written
ATTACKS = {
    "a_compiler_beside_the_file": (PREFIX, 'prefix = "./"'),
    "a_compiler_in_another_folder": (PREFIX, 'prefix = "tools/arm-"'),
    "a_compiler_above": (PREFIX, 'prefix = "../evil-"'),
    "a_compiler_by_its_whole_path": (PREFIX, 'prefix = "{folder}/evil-"'),
    "a_prefix_that_is_an_option": (PREFIX, 'prefix = "-x"'),
    "a_plugin": (FLAG, f'{FLAG}, "-fplugin=evil.so"'),
    "a_plugin_by_name": (FLAG, f'{FLAG}, "-fplugin=evil"'),
    "a_wrapper": (FLAG, f'{FLAG}, "-wrapper"'),
    "a_folder_of_programs": (FLAG, f'{FLAG}, "-B."'),
    "specs": (FLAG, f'{FLAG}, "-specs=evil.specs"'),
    "specs_of_the_linker": (LINK, f'{LINK}, "--specs=evil"'),
    "a_file_of_options": (FLAG, f'{FLAG}, "@options"'),
    "a_header": (FLAG, f'{FLAG}, "-include"'),
    "headers_of_another": (FLAG, f'{FLAG}, "-Iinclude"'),
    "macros": (FLAG, f'{FLAG}, "-Dint8_t=double"'),
    "options_for_the_preprocessor": (FLAG, f'{FLAG}, "-Wp,-MD,evil"'),
    "options_for_the_assembler": (FLAG, f'{FLAG}, "-Wa,-a=evil"'),
    "a_dump": (FLAG, f'{FLAG}, "-fdump-tree-all=evil"'),
    "a_list": (FLAG, f'{FLAG}, "-save-temps"'),
    "another_output": (FLAG, f'{FLAG}, "-oevil"'),
    "another_language": (FLAG, f'{FLAG}, "-xassembler"'),
    "a_linker_script": (LINK, f'{LINK}, "-Tevil.ld"'),
    "a_linkers_plugin": (LINK, f'{LINK}, "-Wl,-plugin,evil.so"'),
    "a_linkers_output": (LINK, f'{LINK}, "-Wl,-Map=evil"'),
    "another_linker": (LINK, f'{LINK}, "-fuse-ld=evil"'),
    "a_shell": (PROGRAM, 'program = "sh"'),
    "an_emulator_beside_the_file": (PROGRAM, 'program = "./qemu-system-arm"'),
    "an_emulator_by_its_whole_path": (PROGRAM, 'program = "{folder}/qemu-system-arm"'),
    "a_machine_that_is_an_option": (MACHINE, 'machine = "-readconfig"'),
    "an_emulators_configuration": (MACHINE, f'{MACHINE}\noptions = ["-readconfig", "evil.cfg"]'),
    "an_emulators_plugin": (MACHINE, f'{MACHINE}\noptions = ["-plugin", "evil.so"]'),
    "an_emulators_log": (MACHINE, f'{MACHINE}\noptions = ["-D", "evil"]'),
    "an_emulators_disk": (MACHINE, f'{MACHINE}\noptions = ["-drive", "file=firmware.elf"]'),
    "half_an_option": (MACHINE, f'{MACHINE}\noptions = ["-cpu"]'),
}


def board_file(folder: Path, old: str, new: str) -> Path:
    """Write a board file with a changed part."""
    assert old in GOOD
    path = folder / "theirs.toml"
    path.write_text(GOOD.replace(old, new.replace("{folder}", str(folder)), 1))
    return path


def bait(path: Path) -> Path:
    """Write a program that creates a file when it runs, and return that file's path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    started = path.parent / "started"
    path.write_text(f"#!/bin/sh\ntouch '{started}'\nexit 1\n")
    path.chmod(0o755)
    return started


@pytest.mark.parametrize("attack", ATTACKS)
def test_files_choose_no_program_and_no_option_that_runs_or_writes(attack: str, tmp_path: Path) -> None:
    with pytest.raises(MlfcError, match=r"toolchain|emulator") as caught:
        find_board(str(board_file(tmp_path, *ATTACKS[attack])))
    assert "theirs.toml" in str(caught.value)


def test_boards_that_come_along_need_no_trust_as_files(tmp_path: Path) -> None:
    for name in boards():
        path = tmp_path / f"{name}.toml"
        path.write_text(boards().get(name).text)
        assert find_board(str(path)) == boards().get(name)
        assert not find_board(str(path)).trusted


@pytest.mark.parametrize("command", ["inspect", "compile", "run", "verify", "create"])
def test_no_command_starts_a_compiler_that_a_file_brought(command: str, models: Path, tmp_path: Path) -> None:
    started = bait(tmp_path / "evil-gcc")
    bait(tmp_path / "evil-objdump")
    file = board_file(tmp_path, PREFIX, 'prefix = "{folder}/evil-"')
    arguments = {
        "create": ("project", "create", models / "hello_world_int8.tflite", "made", "--template", "makefile"),
        "verify": ("verify", models / "hello_world_int8.tflite", "--samples", "1"),
    }.get(command, (command, models / "hello_world_int8.tflite"))
    result = program(*arguments, "--board", file, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "expected the plain name of a program on the PATH" in result.stderr
    assert "--trust-board" in result.stderr
    assert "Traceback" not in result.stderr
    assert not started.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evil-gcc", "evil-objdump", "theirs.toml"]


def test_trust_is_given_by_an_option_or_an_argument(models: Path, tmp_path: Path) -> None:
    started = bait(tmp_path / "evil-gcc")
    file = board_file(tmp_path, PREFIX, 'prefix = "{folder}/evil-"')
    board = find_board(str(file), trust=True)
    assert board.toolchain.prefix == f"{tmp_path}/evil-"
    result = program("inspect", models / "hello_world_int8.tflite", "--board", file, "--trust-board", cwd=tmp_path)
    assert started.exists()
    assert "does not build for the board" in result.stdout + result.stderr
    alone = program("inspect", models / "hello_world_int8.tflite", "--trust-board", cwd=tmp_path)
    assert alone.returncode == 2
    assert "--trust-board requires --board" in alone.stderr


def test_trust_is_not_given_to_paths_from_the_current_folder(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is relative to the current folder"):
        find_board(str(board_file(tmp_path, PREFIX, 'prefix = "./evil-"')), trust=True)


@pytest.mark.parametrize("entry", ["", ".", "bin"])
def test_the_path_leads_to_no_folder_that_depends_on_the_current_one(
    entry: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = bait(tmp_path / entry / "arm-none-eabi-gcc")
    path = os.pathsep.join((entry, str(Path(sys.executable).parent)))
    result = program("inspect", models / "hello_world_int8.tflite", "--board", "mps2-an386", cwd=tmp_path, PATH=path)
    assert "arm-none-eabi-gcc is not on the PATH" in result.stdout
    assert not started.exists()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", path)
    with pytest.raises(ToolchainError, match="not on the PATH"):
        need("arm-none-eabi-gcc", ("gcc-arm-none-eabi",))
    assert all(Path(folder).is_absolute() for folder in environment()["PATH"].split(os.pathsep))


def test_projects_get_no_flash_command_of_a_files_choice(models: Path, tmp_path: Path) -> None:
    archive = tmp_path / "model.tar"
    mlfc.export_model_library_format(imported(models / "hello_world_int8.tflite", "hello"), archive)
    tool = '[flash_tool]\ncommand = ["{command}", "{elf}"]\ninstall = "nowhere"\n\n[emulator]'.replace(
        "{command}", "sh"
    )
    file = board_file(tmp_path, "[emulator]", tool)
    arguments = ("makefile", archive, tmp_path / "made", {"board": str(file), "project_type": "standalone"})
    with pytest.raises(OptionError, match="flash_tool: the project would run the file's own command 'sh"):
        generate_project(*arguments)
    assert not (tmp_path / "made").exists()
    made = generate_project(*arguments, trust_board=True)
    assert '"sh"' in (made / "project.json").read_text()
    # commands may be copied from built-in boards
    known = boards().get("arduino_mega").text
    own = tmp_path / "mega.toml"
    own.write_text(known.replace('name = "arduino_mega"', 'name = "mine"', 1))
    generate_project("makefile", archive, tmp_path / "mega", {"board": str(own), "project_type": "standalone"})


def test_pipes_and_endless_files_are_no_boards(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    for path in (pipe, tmp_path / "endless.toml"):
        with pytest.raises(OptionError, match="pipe or a device"):
            find_board(str(path))
    (tmp_path / "large.toml").write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(OptionError, match="too large"):
        find_board(str(tmp_path / "large.toml"))
