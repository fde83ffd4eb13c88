"""Sizes of compiled code equal those that binutils' ``size`` reports."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import mlfc
from mlfc.archive.describe.inspect import object_sizes
from mlfc.errors import ToolchainError
from tests.conftest import need
from tests.show_archive import CODE_PATH, write_archive

SOURCE = """
const int table[5] = {1, 2, 3, 4, 5};
int counter = 7, more[3] = {1, 2, 3};
static unsigned char workspace[1000];
int run(int at) { workspace[at] = (unsigned char)at; return table[at] + counter + more[1] + workspace[at + 1]; }
"""


def counted(size: str, path: Path) -> tuple[int, int, int]:
    text, data, bss, *_ = subprocess.run([size, path], check=True, capture_output=True, text=True).stdout.split()[6:]
    return int(text), int(data), int(bss)


@pytest.mark.parametrize(
    ("compiler", "package", "size"),
    [
        (("gcc",), "gcc", "size"),
        (("gcc", "-m32"), "gcc-multilib", "size"),
        (("arm-none-eabi-gcc", "-mthumb", "-mcpu=cortex-m4"), "gcc-arm-none-eabi", "arm-none-eabi-size"),
        (("arm-none-eabi-gcc", "-mbig-endian"), "gcc-arm-none-eabi", "arm-none-eabi-size"),
    ],
    ids=["64", "32", "thumb", "big_endian"],
)
def test_sections_are_counted_as_size_counts_them(
    tmp_path: Path, compiler: tuple[str, ...], package: str, size: str
) -> None:
    need(compiler[0], package)
    (tmp_path / "code.c").write_text(SOURCE)
    subprocess.run([*compiler, "-O1", "-c", "code.c", "-o", "code.o"], cwd=tmp_path, check=True)
    found = object_sizes((tmp_path / "code.o").read_bytes(), "code.o")
    text, data, bss = counted(need(size, "binutils"), tmp_path / "code.o")
    assert found["code_bytes"] + found["readonly_bytes"] == text
    assert (found["data_bytes"], found["zeroed_bytes"]) == (data, bss)
    assert min(found.values()) > 0


def test_what_is_no_object_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match="expected an ELF object"):
        object_sizes(b"\xcf\xfa\xed\xfe" + bytes(100), "code.o")
    with pytest.raises(ToolchainError, match="cut off"):
        object_sizes(b"\x7fELF\x02\x01" + bytes(10), "code.o")


def test_a_diff_counts_compiled_code_when_asked(tmp_path: Path) -> None:
    need("gcc", "gcc")
    files = {CODE_PATH: "#include <stdint.h>\nint32_t tvmgen_net_run(void) { return 0; }\n"}
    a = write_archive(tmp_path / "a.tar", files=files)
    more = files[CODE_PATH] + "static int32_t kept[100];\nint32_t *place(void) { return kept; }\n"
    b = write_archive(tmp_path / "b.tar", files={CODE_PATH: more})
    totals = mlfc.diff(a, b, compile_code=True)["totals"]
    assert totals["zeroed_bytes"] == [0, 400]
    assert totals["code_bytes"][0] < totals["code_bytes"][1]
    assert mlfc.diff(a, b)["totals"] == {}


@pytest.mark.usefixtures("unoptimized_builds")
def test_code_of_tvm_compiles_with_our_headers(shared: Path) -> None:
    need("gcc", "gcc")
    folder = shared / "fixtures/tvm-0.14"
    totals = mlfc.diff(folder / "kws_aot_c.tar.xz", folder / "multi.tar.xz", compile_code=True)["totals"]
    # the second contains the first's module and another one with at least 264,192 bytes of weights
    assert totals["readonly_bytes"][1] - totals["readonly_bytes"][0] > 264_192
