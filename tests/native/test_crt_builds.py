"""The C runtime compiles everywhere without a warning and behaves under sanitizers as its headers specify."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mlfc.crt import crt_files
from tests.conftest import need
from tests.native.crt_build import (
    NO_SYSTEM_LIB,
    PROGRAMS,
    SANITIZED,
    STRICT,
    check_c,
    compile_c,
    run,
    sources,
    write_tree,
)

STACK_ALIGNMENT = "-DTVM_RUNTIME_ALLOC_ALIGNMENT_BYTES=32"
LIFO_CHECK = "-DTVM_CRT_STACK_ALLOCATOR_ENABLE_LIFO_CHECK"
PUBLIC_HEADERS = [name.removeprefix("include/") for name in crt_files() if name.startswith("include/")]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("crt"))


def test_files_are_the_folder_without_python_in_a_fixed_order() -> None:
    names = list(crt_files())
    assert names == sorted(names)
    assert "include/tvm/runtime/crt/graph_executor.h" in names
    assert not [name for name in names if ".py" in name]
    assert all(b"SPDX-License-Identifier: 0BSD" in text for name, text in crt_files().items() if name != "README.md")


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_host_build_has_no_warnings(tree: Path, compiler: str) -> None:
    check_c(tree, [*sources(tree), tree / "runtime/host/platform.c"], [], compiler)


@pytest.mark.parametrize("flags", [("-m32", STACK_ALIGNMENT), ("-O2", NO_SYSTEM_LIB, LIFO_CHECK)])
def test_other_builds_have_no_warnings(tree: Path, flags: tuple[str, ...]) -> None:
    check_c(tree, [*sources(tree), tree / "board/platform.c"], flags, "gcc", host=False)


def test_templates_build_for_boards(tree: Path) -> None:
    """Build for the smallest core; test_archive_builds.py builds for a Cortex-M4."""
    flags = ["-mcpu=cortex-m0", "-mthumb", "-Os"]
    check_c(tree, [*sources(tree), tree / "board/platform.c"], flags, "arm-none-eabi-gcc", host=False)


@pytest.mark.parametrize(("language", "standard"), [("c", "c99"), ("c++", "c++98"), ("c++", "c++17")])
def test_each_header_stands_alone(tree: Path, tmp_path: Path, language: str, standard: str) -> None:
    """Compile each header alone, or all together in a newer standard of the same language."""
    alone = [[name] for name in PUBLIC_HEADERS]
    for names in [PUBLIC_HEADERS] if standard == "c++17" else alone:
        file = tmp_path / "header.c"
        file.write_text("".join(f"#include <{name}>\n" for name in (*names, *names)))
        command = [need("gcc", "gcc"), "-x", language, f"-std={standard}", *STRICT[1:], "-fsyntax-only"]
        command += ["-I", str(tree / "runtime/include"), "-I", str(tree / "runtime/host"), str(file)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 0, f"{names}: {result.stderr}"


LAYOUT = """
#include <stddef.h>
#include <tvm/runtime/crt/error_codes.h>
#include <tvm/runtime/c_runtime_api.h>
#define SAME(name, a, b) typedef char name[(a) == (b) ? 1 : -1]
SAME(value, sizeof(TVMValue), 8);
SAME(device, sizeof(DLDevice), 8);
SAME(type_offset, offsetof(DLTensor, dtype), sizeof(void*) + 12);
SAME(shape_offset, offsetof(DLTensor, shape), sizeof(void*) + 16);
SAME(tensor, sizeof(DLTensor), sizeof(void*) == 8 ? 48 : TENSOR_32);
SAME(code, sizeof(tvm_crt_error_t), sizeof(int));
SAME(not_found, kTvmErrorFunctionNameNotFound, 0x100);
SAME(too_small, kTvmErrorBufferTooSmall, 0x104);
SAME(payload, kTvmErrorFramingPayloadIncomplete, 0x204);
SAME(write, kTvmErrorWriteStreamLongWrite, 0x301);
SAME(session, kTvmErrorSessionReceiveBufferShortWrite, 0x402);
SAME(bad_free, kTvmErrorPlatformStackAllocBadFree, 0x505);
SAME(storage, kTvmErrorGeneratedInvalidStorageId, 0x600);
SAME(input, kTvmErrorExecutorModuleNoSuchInput, 0x702);
SAME(argument, kTvmErrorFunctionCallInvalidArg, 0x803);
SAME(timer, kTvmErrorTimeEvaluatorBadHandle, 0x900);
SAME(platform, kTvmErrorSystemErrorMask < 0, 1);
"""


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("gcc", ("-DTENSOR_32=0",)), ("gcc", ("-m32", "-DTENSOR_32=36")), ("arm-none-eabi-gcc", ("-DTENSOR_32=40",))],
)
def test_layouts_and_codes_are_those_of_the_interface(
    tree: Path, tmp_path: Path, compiler: str, flags: tuple[str, ...]
) -> None:
    (tmp_path / "layout.c").write_text(LAYOUT)
    check_c(tree, [tmp_path / "layout.c"], flags, compiler)


@pytest.mark.parametrize(
    ("program", "flags"),
    [
        ("check_memory", (NO_SYSTEM_LIB,)),
        ("check_memory", (NO_SYSTEM_LIB, LIFO_CHECK)),
        ("check_memory", (NO_SYSTEM_LIB, LIFO_CHECK, "-m32")),
        ("check_functions", ()),
        ("check_functions", ("-m32",)),
        ("check_aot_executor", ()),
        ("check_aot_executor", ("-m32",)),
    ],
)
def test_unit_program(tree: Path, program: str, flags: tuple[str, ...]) -> None:
    sanitized = () if "-m32" in flags else SANITIZED
    needed = sources(tree, rpc=False)
    if program == "check_memory":  # compiled in three configurations that the other sources do not support
        needed = [path for path in needed if path.parent.name in ("memory", "common")]
    files = [PROGRAMS / f"{program}.c", *needed, tree / "runtime/host/platform.c"]
    run(compile_c(tree, program, files, [*STRICT, *sanitized, *flags], host=False))


def test_cmake_makes_a_library_that_a_program_links(tree: Path, tmp_path: Path) -> None:
    cmake = need("cmake", "cmake")
    quick = "-DCMAKE_C_FLAGS=-O0"
    subprocess.run([cmake, "-S", str(tree / "runtime"), "-B", str(tmp_path), quick], check=True, capture_output=True)
    subprocess.run([cmake, "--build", str(tmp_path)], check=True, capture_output=True)
    library = tmp_path / "libmlfc_crt.a"
    run(compile_c(tree, "linked", [PROGRAMS / "check_aot_executor.c", library]))
