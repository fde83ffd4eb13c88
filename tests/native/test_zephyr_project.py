"""Zephyr projects, built with a stand-in for Zephyr's CMake functions and checked by Kconfig's own parser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import kconfiglib
import numpy as np
import pytest
import yaml

import mlfc
from tests.conftest import need
from tests.projects import archive, expected_output, odd_archive, printed_output, project

STAND_IN = Path(__file__).parent / "stand_ins" / "zephyr"
SYMBOL = "MLFC_HELLO_WORLD"


@pytest.fixture
def host_archive(models: Path, tmp_path: Path) -> Path:
    return archive(models, tmp_path, "c")


def configured(folder: Path, monkeypatch: pytest.MonkeyPatch, more: str = "") -> kconfiglib.Kconfig:
    """Return Kconfig's symbols with the application's values, and fail on any Kconfig warning."""
    config = folder / "app" / "prj.conf"
    config.write_text(config.read_text() + more)
    monkeypatch.setenv("MODULE_KCONFIG", str(folder / "zephyr" / "Kconfig"))
    found = kconfiglib.Kconfig(str(STAND_IN / "Kconfig"), warn_to_stderr=False)
    found.warn_assign_undef = True
    found.load_config(str(config))
    assert not found.warnings
    return found


def built(folder: Path, config: kconfiglib.Kconfig) -> str:
    """Build and run the application; return its output."""
    values = folder / "config.cmake"
    lines = [f'set(CONFIG_{name} "{symbol.str_value}")' for name, symbol in config.syms.items() if symbol.orig_type]
    values.write_text("\n".join(line.replace('"n"', '""') for line in lines))
    defines = [f"-DZephyr_DIR={STAND_IN}", f"-DCONFIG={values}", f"-DLOG={folder / 'log'}"]
    flags = "-DCMAKE_C_FLAGS=-Wall -Wextra -Wpedantic -Werror"
    for command in (
        ["cmake", "-G", "Ninja", "-S", folder / "app", "-B", folder / "build", *defines, flags],
        ["cmake", "--build", folder / "build"],
    ):
        result = subprocess.run([str(word) for word in command], check=False, capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
    return subprocess.run([str(folder / "build" / "app")], check=True, capture_output=True, text=True).stdout


def test_the_application_prints_what_the_reference_computes(
    host_archive: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ninja", "ninja-build")
    folder = project("zephyr", host_archive, tmp_path / "project", "host")
    text = built(folder, configured(folder, monkeypatch))
    np.testing.assert_array_equal(printed_output(text), expected_output(models, host_archive))
    assert (folder / "log").read_text() == "linker_sources RAM_SECTIONS workspace.ld\n"
    assert re.search(regex_of(folder), text, re.MULTILINE)


def test_the_self_test_passes_and_memory_goes_where_kconfig_says(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ninja", "ninja-build")
    model = archive(models, tmp_path, "c", external_workspace=True)
    folder = project("zephyr", model, tmp_path / "project", "host", "selftest")
    regions = {"WORKSPACE": "DTCM", "TEXT": "ITCM", "RODATA": "SRAM2"}
    more = "".join(f'CONFIG_{SYMBOL}_{kind}_REGION="{region}"\n' for kind, region in regions.items())
    text = built(folder, configured(folder, monkeypatch, more))
    assert "PASS 2 of 2" in text
    assert re.search(regex_of(folder), text, re.MULTILINE)
    assert relocated(folder) == {"DTCM_BSS": "", "ITCM_TEXT": "", "SRAM2_RODATA": ""}


def test_memories_that_the_model_was_compiled_for_have_regions_of_their_own(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need("ninja", "ninja-build")
    pools = [mlfc.Pool("fast", 20), mlfc.Pool("slow")]
    constants = [mlfc.ConstantPool("fast", 100), mlfc.ConstantPool("slow")]
    model = archive(models, tmp_path, "c", workspace_io=True, pools=pools, constants=constants)
    folder = project("zephyr", model, tmp_path / "project", "host", "selftest")
    config = configured(
        folder, monkeypatch, f'CONFIG_{SYMBOL}_MEMORY_FAST="DTCM"\nCONFIG_{SYMBOL}_RODATA_REGION="SRAM2"\n'
    )
    assert "PASS 2 of 2" in built(folder, config)
    filters = relocated(folder)
    assert list(filters) == ["SRAM2_RODATA", "DTCM_BSS", "DTCM_RODATA"]
    sections = set()
    for path in (folder / "model/codegen/host/src").glob("*.c"):
        sections |= set(re.findall(r'section\("([^"]+)"\)', path.read_text()))
    named = {kind: {name for name in sections if re.search(pattern, name)} for kind, pattern in filters.items()}
    assert named == {"SRAM2_RODATA": set(), "DTCM_BSS": {".bss.noinit.tvm.fast"}, "DTCM_RODATA": {".rodata.tvm.fast"}}
    assert re.search(filters["SRAM2_RODATA"], ".rodata.tvmgen_hello_world_constant_dense_0_weights")


def relocated(folder: Path) -> dict[str, str]:
    """Return the section patterns that are relocated, by memory region."""
    found = {}
    for line in (folder / "log").read_text().splitlines():
        if line.startswith("code_relocate 3 "):
            location, _, pattern = line.removeprefix("code_relocate 3 ").partition(" ")
            found[location] = pattern
    return found


def regex_of(folder: Path) -> str:
    """Return the line that twister waits for."""
    document = yaml.safe_load((folder / "app" / "sample.yaml").read_text())
    assert all(name.count(".") >= 1 for name in document["tests"])
    (regex,) = document["common"]["harness_config"]["regex"]
    return str(regex)


def test_options_and_boards_reach_prj_conf(host_archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = project("zephyr", host_archive, tmp_path / "m4", "mps2-an386", config_main_stack_size=3000)
    symbols = configured(folder, monkeypatch).syms
    assert symbols["MAIN_STACK_SIZE"].str_value == "3000"
    assert symbols["FPU"].str_value == symbols[SYMBOL].str_value == symbols[f"{SYMBOL}_SPEED"].str_value == "y"
    assert symbols["CODE_DATA_RELOCATION"].str_value == "n"
    folder = project("zephyr", host_archive, tmp_path / "m3", "mps2-an385")
    symbols = configured(folder, monkeypatch).syms
    assert symbols["FPU"].str_value == "n"
    bound = re.search(r"an inference takes at most (\d+) bytes", (folder / "app" / "prj.conf").read_text())
    compiler = shutil.which("arm-none-eabi-gcc")
    assert (bound is not None) == (compiler is not None)
    # with the compiler, less than the 65,536 bytes of the board's file
    expected = 65536 if bound is None else int(bound[1]) + 2048
    assert int(symbols["MAIN_STACK_SIZE"].str_value) == expected < 65536 + (bound is None)
    document = yaml.safe_load((folder / "zephyr" / "module.yml").read_text())
    assert document == {
        "name": "mlfc-hello-world",
        "build": {"cmake": "zephyr", "kconfig": "zephyr/Kconfig"},
        "samples": ["app"],
    }


@pytest.mark.parametrize(("project_type", "floats"), [("standalone", "y"), ("selftest", "n")])
def test_only_printing_floats_takes_their_conversions(
    project_type: str, floats: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = project("zephyr", odd_archive(tmp_path), tmp_path / "project", "host", project_type)
    symbols = configured(folder, monkeypatch).syms
    assert symbols["MLFC_N_ARDUINO__STRING_2"].str_value == "y"
    assert symbols["CBPRINTF_FP_SUPPORT"].str_value == floats


def test_the_linker_snippet_keeps_the_workspace_out_of_bss(host_archive: Path, tmp_path: Path) -> None:
    """Include the snippet before .bss, as Zephyr does, with its macros defined as in Zephyr's linker scripts."""
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi libnewlib-arm-none-eabi")
    folder = project("zephyr", host_archive, tmp_path / "project", "mps2-an385")
    script = tmp_path / "script.ld"
    script.write_text(
        "#define SECTION_PROLOGUE(name, options, align) name options : align\n"
        "#define GROUP_NOLOAD_LINK_IN(vregion, lregion) > vregion\n"
        "#define RAMABLE_REGION RAM\n"
        "MEMORY { FLASH (rx) : ORIGIN = 0, LENGTH = 1M\nRAM (wx) : ORIGIN = 0x20000000, LENGTH = 1M }\n"
        "SECTIONS {\n.text : { *(.text*) *(.rodata*) } > FLASH\n"
        '#include "workspace.ld"\n'
        ".bss (NOLOAD) : { *(.bss .bss.*) *(COMMON) } > RAM\n}\n"
    )
    steps = [
        ["-E", "-P", "-x", "c", f"-I{folder / 'zephyr'}", script, "-o", tmp_path / "link.ld"],
        ["-mcpu=cortex-m3", "-mthumb", "-nostartfiles", "--specs=nosys.specs", "-Wl,--entry=tvmgen_hello_world_run",
         f"-I{folder / 'model/codegen/host/include'}", "-T", tmp_path / "link.ld",
         *sorted((folder / "model/codegen/host/src").glob("*.c")), "-lm", "-o", tmp_path / "linked.elf"],
    ]  # fmt: skip
    for arguments in steps:
        subprocess.run(["arm-none-eabi-gcc", *map(str, arguments)], check=True)
    symbols = subprocess.run(
        ["arm-none-eabi-objdump", "-t", str(tmp_path / "linked.elf")], check=True, capture_output=True, text=True
    ).stdout
    assert re.search(r"^20000000 l +O hello_world_workspace\t\S+ global_workspace$", symbols, re.MULTILINE), symbols
