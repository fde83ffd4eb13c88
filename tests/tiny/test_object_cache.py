"""Cached objects that make finds in place equal those that it would have built."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import session_cache
from tests.conftest import need
from tests.object_cache import trial, with_known_objects

MAKEFILE = "a.o: a.c\n\t$(CC) $(CFLAGS) -Iheaders -c -o a.o a.c\n\t@echo built\n"
SOURCE = '#include "a.h"\nint a = A;\n'


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(session_cache, "_FOLDER", [tmp_path / "built"])


def make(folder: Path, *arguments: str, source: str = SOURCE, header: str = "#define A 1\n") -> tuple[bool, bytes]:
    """Return whether the compiler was called, and the object."""
    (folder / "headers").mkdir(parents=True)
    for name, text in {"Makefile": MAKEFILE, "a.c": source, "headers/a.h": header}.items():
        (folder / name).write_text(text)
    command = [need("make", "make"), f"CC={need('cc', 'gcc')}", *arguments]

    def run() -> Any:
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)

    return "built" in with_known_objects(command, folder, run).stdout, (folder / "a.o").read_bytes()


def test_the_same_object_is_built_once(tmp_path: Path) -> None:
    built, first = make(tmp_path / "one")
    again, second = make(tmp_path / "two")
    assert (built, again) == (True, False)
    assert first == second


@pytest.mark.parametrize(
    "change",
    [{"source": SOURCE + "int b;\n"}, {"header": "#define A 2\n"}, {"header": "#include <stdint.h>\n#define A 1\n"}],
    ids=["source", "header", "includes"],
)
def test_what_is_made_of_other_text_is_built(tmp_path: Path, change: dict[str, str]) -> None:
    make(tmp_path / "one")
    assert make(tmp_path / "two", **change)[0]


@pytest.mark.parametrize(
    ("before", "after", "builds"),
    [
        ("", "-O1", True), ("-O0 -O1", "-O1", False), ("-O1 -O0", "-O1", True),
        ("", "-DMLFC_B", False), ("", "-DMLFC_A=2", True), ("", "-DB", True),
    ],
)  # fmt: skip
def test_other_flags_build_again(before: str, after: str, builds: bool, tmp_path: Path) -> None:
    """Only the last optimization level counts, and only macros of mlfc that the source names."""
    source = f"{SOURCE}#ifdef MLFC_A\nint c = MLFC_A;\n#endif\n"
    make(tmp_path / "one", f"CFLAGS={before}", source=source)
    assert make(tmp_path / "two", f"CFLAGS={after}", source=source)[0] is builds


@pytest.mark.parametrize(
    ("source", "flags"),
    [("#define H <a.h>\n#include H\nint a = A;\n", ""), (SOURCE, "-g"), ("#warning no\n" + SOURCE, "")],
    ids=["computed", "debug", "warning"],
)
def test_what_may_differ_all_the_same_is_not_kept(tmp_path: Path, source: str, flags: str) -> None:
    for name in ("one", "two"):
        assert make(tmp_path / name, f"CFLAGS={flags}", source=source)[0]


def test_a_header_that_a_source_only_looks_for_counts(tmp_path: Path) -> None:
    sources = [f"#if __has_include(<{name}.h>)\nint a;\n#endif\n" for name in ("a", "b")]
    for name, source in zip(("one", "two"), sources, strict=True):
        assert make(tmp_path / name, source=source)[0]
    assert make(tmp_path / "three", source=sources[0], header="#define A 2\n")[0]


def test_a_model_alone_is_made_of_the_objects_of_its_firmware(tmp_path: Path) -> None:
    """Use the object at another place in the folder, and only with the same flags."""
    compiler = need("cc", "gcc")
    _, first = make(tmp_path / "one", f"CC={compiler} -fstack-usage", "CFLAGS=-O1")
    called = []

    def real(command: Any, folder: Path, timeout: float) -> Any:
        called.append(timeout)
        return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)

    for flags, calls in (("-O1", []), ("-O2", [60.0])):
        folder = tmp_path / flags
        (folder / "src" / "headers").mkdir(parents=True)
        (folder / "src" / "a.c").write_text(SOURCE)
        (folder / "src" / "headers" / "a.h").write_text("#define A 1\n")
        command = [compiler, flags, "-fstack-usage", "-Isrc/headers", "-c", "./src/a.c", "-o", "./src/a.c.o"]
        trial(real)(command, folder, 60.0)
        assert called == calls
        assert (folder / "src" / "a.c.su").is_file()
    assert (tmp_path / "-O1" / "src" / "a.c.o").read_bytes() == first
