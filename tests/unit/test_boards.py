"""Board files: the built-in ones are valid, and errors name every fault of a user's file."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from mlfc.errors import ArchiveError, InternalError, MlfcError, OptionError, ProblemsError
from mlfc.micro.board import board as board_room
from mlfc.micro.board.board import boards, find_board, parse_board
from mlfc.micro.firmware.bare_metal import (
    Firmware,
    bare_metal,
    linker_script,
    project_files,
    refuses_bare_metal,
    write_files,
)
from mlfc.support.module_info import MemoryInfo, ModuleInterface
from mlfc.target.target import parse_target
from tests.unit.test_cli import mlfc as program
from tests.unit.test_cli import succeeded

FOLDER = Path(board_room.__file__).parents[1] / "boards"
GOOD = (FOLDER / "mps2-an386.toml").read_text()


def test_boards_that_come_along_are_named_after_their_files() -> None:
    assert sorted(boards()) == sorted(path.stem for path in FOLDER.glob("*.toml"))
    for name in boards():
        board = boards().get(name)
        assert parse_target(board.target).mcpu == board.core
        assert board.arch == "host" or board.memories[0].kind == "flash"


def test_a_file_of_ones_own_is_a_board(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(GOOD.replace('"mps2-an386"', '"mine"', 1).replace("0x00400000", "0x00020000"))
    board = find_board(str(path))
    assert (board.name, board.ram.nbytes) == ("mine", 0x20000)
    assert "ram (rwx) : ORIGIN = 0x20000000, LENGTH = 0x20000" in linker_script(board).decode()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "ram"', 'kind = "tape"', "tape"),
        ('kind = "ram"', 'kind = "flash"', "a region of the kind ram is missing"),
        ("origin = 0x20000000", "origin = 0x00000010", "overlap"),
        ("origin = 0x20000000", "origin = 0xfff00000", "'ram' exceeds 32-bit addresses"),
        ("bytes = 0x00400000", "bytes = 0", "0 is less than"),
        ("stack_bytes = 65536", "stack_bytes = 4194304", "4,194,304 bytes leaves nothing of the region 'ram'"),
        ('kind = "ram"', 'kind = "ram"\ndefault = true', "two regions of the kind ram are the default"),
        ('name = "ram"', 'name = "flash"', "two regions have the name 'flash'"),
        ('-mcpu=cortex-m4"\narch', '-mcpu=cortex-m44"\narch', "cortex-m4"),
        ('core = "', 'coer = "', "coer"),
        ('"-mthumb"', '"-mthumb; rm -rf ."', "does not match"),
        ('description = "', 'description = "one\\ntwo', "description.*does not match"),
        ("bytes = 0x00400000", "bytes = -1", "less than"),
        ('zephyr = "', 'zephyr = "-', "zephyr.*does not match"),
        ("[vendor]", '[vendor]\narduino = "--config-file=x"', "arduino.*does not match"),
        ("[emulator]", '[flash_tool]\ncommand = ["a\\u001bb"]\ninstall = ""\n\n[emulator]', "command.*does not match"),
        ('description = "', "description = ", "TOML"),
        ("[toolchain]", "[tools]", "'toolchain' is missing"),
    ],
)
def test_faults_are_named(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(MlfcError, match=message) as caught:
        parse_board(GOOD.replace(old, new), "mine.toml")
    assert "mine.toml" in str(caught.value)


def test_all_faults_are_named_at_once() -> None:
    text = GOOD.replace("origin = 0x20000000", "origin = 0x00000010").replace("-mcpu=cortex-m4", "-mcpu=cortex-m44", 1)
    with pytest.raises(ProblemsError) as caught:
        parse_board(text.replace("stack_bytes = 65536", "stack_bytes = 16777216"), "mine.toml")
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize("arch", ['arch = "cortex-m"', 'arch = "avr"'])
def test_a_description_stays_in_its_comment(arch: str) -> None:
    text = GOOD.replace('description = "', 'description = "*/ INCLUDE other.ld /*').replace('arch = "cortex-m"', arch)
    script = linker_script(parse_board(text, "mine.toml")).decode()
    outside = re.sub(r"/\*.*?\*/", "", script, flags=re.DOTALL)
    assert "INCLUDE" in script
    assert "INCLUDE" not in outside


@pytest.mark.parametrize("name", ["nothing-like-it", "missing.toml", "mps2-an38"])
def test_unknown_boards_are_refused(name: str) -> None:
    with pytest.raises(MlfcError, match=name):
        find_board(name)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("stm32f407", "stm32f4_disco (STM32F407VG)"),
        ("STM32F411", "nucleo_f446re (STM32F446RE)"),
        ("nrf52833", "nrf52840dk (nRF52840)"),
        ("samd51", "feather_m4_express (ATSAMD51J19A)"),
        ("pico", "rp2350 (RP2350)"),
        ("nothing-like-it", "mlfc boards"),
    ],
)
def test_an_unknown_board_gets_its_family_as_a_hint(name: str, hint: str) -> None:
    with pytest.raises(OptionError) as caught:
        find_board(name)
    assert hint in str(caught.value)
    assert "esp32" not in str(caught.value)


def test_capital_letters_in_names_of_boards_make_no_difference() -> None:
    assert find_board("STM32H743") is find_board("stm32h743")
    assert find_board("MPS2-AN386").name == "mps2-an386"


def test_start_up_code_and_linker_script_of_every_board_build(tmp_path: Path) -> None:
    """Build those of bare-metal boards, most of which no other test covers."""
    made: dict[tuple[str, ...], list[str]] = {}
    for name in boards():
        board = boards().get(name)
        compiler = f"{board.toolchain.prefix}gcc"
        if not board.bare_metal or board.arch == "host" or shutil.which(compiler) is None:
            continue
        folder = tmp_path / name
        files = bare_metal({}, board, Firmware("int main(void) { return 0; }\n"))
        write_files(folder, files.files)
        command = (compiler, *files.core_flags)
        if command not in made:
            sources = [str(folder / path) for path in files.sources]
            flags = ["-std=c99", "-ffunction-sections", *(f"-I{folder / path}" for path in files.folders)]
            subprocess.run([*command, *flags, "-c", *sources], cwd=folder, check=True)
            made[command] = [str(path) for path in folder.glob("*.o")]
        linked = [*board.toolchain.link_flags, f"-Wl,--defsym=STACK_BYTES={board.stack_bytes}", "-Tlink.ld"]
        subprocess.run([*command, *made[command], *linked, "-Wl,--gc-sections", "-o", "a.elf"], cwd=folder, check=True)


@pytest.mark.parametrize("name", ["src/$(touch owned).c", "src/a b.c", "src/a;b.c", "src/`x`.c", "-o.c"])
def test_names_that_make_would_act_on_are_refused(name: str) -> None:
    memory = MemoryInfo(0, 0, 0, 0)
    details = ModuleInterface(entry=None, external_workspace=False, inputs=(), outputs=(), memory=memory)
    with pytest.raises(ArchiveError, match="Makefile"):
        project_files("m", {name: b""}, details, find_board("mps2-an386"))


def test_the_commands_of_the_page_about_boards_of_ones_own_work(models: Path, tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "how-to" / "add-a-board.md"
    commands = [line.split() for line in page.read_text().splitlines() if line.startswith("    mlfc ")]
    assert len(commands) == 4
    shutil.copy(models / "hello_world_int8.tflite", tmp_path / "kws.tflite")
    (tmp_path / "my-board.toml").write_text(GOOD.replace('"mps2-an386"', '"my-board"', 1))
    for _, *arguments in commands:
        succeeded(*arguments, cwd=tmp_path)
    assert (tmp_path / "firmware" / "Makefile").is_file()


def test_one_board_is_shown_whole(tmp_path: Path) -> None:
    text = succeeded("boards", "mps3-an547", cwd=tmp_path)
    for fact in (
        "FPU MVE",
        "-mcpu=cortex-m55",
        "qemu-system-arm -M mps3-an547",
        "dtcm",
        "0x60000000",
        "gcc-arm-none-eabi",
    ):
        assert fact in text
    document = json.loads(succeeded("boards", "stm32h743", "--json", cwd=tmp_path))
    assert {item["name"] for item in document["memories"]} == {"flash", "axi_sram", "dtcm", "itcm", "sram4"}
    listed = json.loads(succeeded("boards", "--json", cwd=tmp_path))
    assert listed["stm32h743"] == document
    (tmp_path / "mine.toml").write_text(succeeded("boards", "stm32h743", "--toml", cwd=tmp_path))
    assert json.loads(succeeded("boards", "mine.toml", "--json", cwd=tmp_path))["memories"] == document["memories"]
    assert "option --toml requires a board" in program("boards", "--toml", cwd=tmp_path).stderr
    assert set(listed) == set(boards())


def test_boards_that_the_vendor_starts_have_no_firmware_of_ours() -> None:
    with pytest.raises(OptionError, match="'rp2040' runs no bare-metal firmware"):
        project_files("m", {}, {}, find_board("rp2040"), Firmware("int main(void) { return 0; }\n"))
    for name in boards():
        board = boards().get(name)
        assert (refuses_bare_metal(board) is None) == board.bare_metal
        # boards without our start-up code have a vendor's build system, for which projects can be created
        assert board.bare_metal or board.vendor


@pytest.mark.parametrize("digits", [19, 400, 5000])
def test_a_board_with_a_number_of_many_digits_is_refused(digits: int) -> None:
    with pytest.raises(MlfcError) as caught:
        parse_board(f"name = 'x'\nstack_bytes = {'9' * digits}\n", "b.toml")
    assert not isinstance(caught.value, InternalError)
