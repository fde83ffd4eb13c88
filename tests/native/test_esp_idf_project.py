"""ESP-IDF projects, built with a stand-in for ESP-IDF's CMake functions and checked by Kconfig's own parser."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import kconfiglib
import numpy as np
import pytest
import yaml

from mlfc.errors import OptionError
from mlfc.micro.board.board import find_board
from tests.conftest import need
from tests.projects import NAME, archive, expected_output, printed_output, project

STAND_IN = Path(__file__).parent / "stand_ins" / "esp_idf"
SYMBOL = "MLFC_HELLO_WORLD"
BOARD = "esp32c3"


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> kconfiglib.Kconfig:
    """Return Kconfig's symbols with the example's defaults, and fail on any Kconfig warning."""
    defaults = folder / "examples" / NAME / "sdkconfig.defaults"
    defaults.write_text(defaults.read_text() + more)
    monkeypatch.setenv("COMPONENT_KCONFIG", str(folder / "Kconfig"))
    found = kconfiglib.Kconfig(str(STAND_IN / "Kconfig"), warn_to_stderr=False)
    found.warn_assign_undef = True
    found.load_config(str(defaults))
    assert not [line for line in found.warnings if "IDF_TARGET" not in line]  # set by the build system, not by Kconfig
    return found


def built(folder: Path, config: kconfiglib.Kconfig) -> str:
    """Build and run the example; return its output."""
    values = folder / "config.cmake"
    lines = [f'set(CONFIG_{name} "{symbol.str_value}")' for name, symbol in config.syms.items() if symbol.orig_type]
    values.write_text("\n".join(line.replace('"n"', '""') for line in lines))
    flags = "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    for command in (
        ["cmake", "-G", "Ninja", "-S", folder / "examples" / NAME, "-B", folder / "build", f"-DCONFIG={values}", flags],
        ["cmake", "--build", folder / "build"],
    ):
        result = subprocess.run(
            [str(word) for word in command], check=False, capture_output=True, text=True,
            env={**os.environ, "IDF_PATH": str(STAND_IN)},
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
    elf = folder / "build" / f"{NAME}.elf"
    return subprocess.run([str(elf)], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("project_type", ["standalone", "selftest"])
def test_the_example_computes_what_the_reference_does(
    project_type: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ninja", "ninja-build")
    model = archive(models, tmp_path, "c", external_workspace=project_type == "selftest")
    folder = project("esp_idf", model, tmp_path / "project", BOARD, project_type)
    text = built(folder, configured(folder, monkeypatch))
    if project_type == "selftest":
        assert "PASS 2 of 2" in text
    else:
        np.testing.assert_array_equal(printed_output(text), expected_output(models, model))


def test_placements_name_the_archive_and_the_symbols_of_kconfig(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ninja", "ninja-build")
    folder = project("esp_idf", archive(models, tmp_path, "c"), tmp_path / "renamed", BOARD)
    config = configured(folder, monkeypatch, f"CONFIG_SPIRAM=y\nCONFIG_{SYMBOL}_WORKSPACE_IN_PSRAM=y\n")
    assert config.syms["SPIRAM_ALLOW_BSS_SEG_EXTERNAL_MEMORY"].str_value == "y"
    built(folder, config)
    lines = (folder / "build" / "renamed.lf").read_text().splitlines()
    assert lines[1:4] == [f"[mapping:{NAME}_model]", "archive: librenamed.a", "entries:"]
    conditions = [re.fullmatch(r"    if (\w+) = y:", line) for line in lines[4::2]]
    assert [match and match[1] in config.syms for match in conditions] == [True] * 3
    assert lines[5::2] == [f"        * ({scheme})" for scheme in ("noflash_text", "noflash_data", "extram_bss")]


def test_the_manifest_and_the_defaults(models: Path, tmp_path: Path) -> None:
    folder = project("esp_idf", archive(models, tmp_path, "c"), tmp_path / "project", BOARD, main_stack_size=5000)
    manifest = yaml.safe_load((folder / "idf_component.yml").read_text())
    assert manifest["dependencies"] == {"idf": ">=5.0"}
    assert re.fullmatch(r"\d+\.\d+\.\d+", manifest["version"])
    defaults = (folder / "examples" / NAME / "sdkconfig.defaults").read_text().splitlines()
    assert 'CONFIG_IDF_TARGET="esp32c3"' in defaults
    assert "CONFIG_ESP_MAIN_TASK_STACK_SIZE=5000" in defaults
    folder = project("esp_idf", archive(models, tmp_path, "c"), tmp_path / "own", BOARD)
    text = (folder / "examples" / NAME / "sdkconfig.defaults").read_text()
    bound = re.search(r"an inference takes at most (\d+) bytes", text)
    assert (bound is not None) == (shutil.which("riscv64-unknown-elf-gcc") is not None)
    stack = find_board(BOARD).stack_bytes if bound is None else int(bound[1]) + 3584
    assert f"CONFIG_ESP_MAIN_TASK_STACK_SIZE={stack}" in text


def test_boards_that_espressif_did_not_make_are_refused(models: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"esp_idf.*mps2-an386.*esp-idf = .*\[vendor\]"):
        project("esp_idf", archive(models, tmp_path, "c"), tmp_path / "project", "mps2-an386")
