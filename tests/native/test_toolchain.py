from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mlfc.errors import OutputError, ToolchainError
from mlfc.library import toolchain
from mlfc.library.build import runtime_code
from mlfc.library.cache import cache_folder
from mlfc.library.toolchain import RUNTIME, compile_cached, find_compiler
from tests.shared_library import compile_shared

FILES = {"src/answer.c": b'#include "answer.h"\nint answer(void) { return ANSWER; }\n',
         "include/answer.h": b"#define ANSWER 42\n"}  # fmt: skip


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "mlfc"


def test_library_runs_and_comes_from_the_cache_the_second_time(own_cache: Path) -> None:
    first = compile_cached(FILES)
    made = first.stat().st_ino
    assert compile_cached(FILES) == first
    assert first.stat().st_ino == made
    assert first.parent == own_cache
    assert ctypes.CDLL(str(first)).answer() == 42


def test_other_content_and_other_flags_are_other_libraries() -> None:
    other = {**FILES, "include/answer.h": b"#define ANSWER 43\n"}
    paths = {compile_cached(FILES), compile_cached(other), compile_cached(FILES, ["-O0"])}
    assert len(paths) == 3
    assert ctypes.CDLL(str(compile_cached(other))).answer() == 43


def libraries(cache: Path) -> list[str]:
    """Return the names in the cache, except compiler descriptions and zig's own cache, which may be in it."""
    return [path.name for path in cache.iterdir() if path.name != "zig" and not path.name.startswith("compiler-")]


def test_builds_at_the_same_time_leave_one_whole_library(own_cache: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        paths = set(pool.map(lambda _: compile_cached(FILES), range(4)))
    assert len(paths) == 1
    assert libraries(own_cache) == [paths.pop().name]


def test_refused_code_names_the_line_and_leaves_nothing(own_cache: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"(?s)status 1.*broken\.c:1") as caught:
        compile_cached({"broken.c": b"int f( {\n"})
    assert "Set" in str(caught.value) or "setting CC" in str(caught.value)
    assert not libraries(own_cache)
    with pytest.raises(ToolchainError):
        compile_shared({"broken.c": b"int f( {\n"}, tmp_path / "x.so")
    assert not (tmp_path / "x.so").exists()


def test_the_runtime_is_compiled_once_for_all_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    real = toolchain.run_tool

    def counted(command: Sequence[str], folder: Path) -> None:
        compiled.extend(word for word in command if word.endswith(".c"))
        real(command, folder)

    monkeypatch.setattr(toolchain, "run_tool", counted)
    call = b"#include <tvm/runtime/c_runtime_api.h>\nint error(void) { return TVMGetLastError() == 0; }\n"
    headers = {"include/tvm/runtime/c_runtime_api.h": b"const char *TVMGetLastError(void);\n#error"}
    first, *others = (
        {"src/model.c": call},
        {"src/other.c": call + b"int other;\n"},
        {"src/third.c": call.replace(b"#include", b"//"), **headers},  # would replace one of the runtime
    )
    toolchain.compile_cached({**first, **runtime_code([first]).files})
    assert any(name.startswith(f"{RUNTIME}/") for name in compiled)
    for files in others:
        compiled.clear()
        toolchain.compile_cached({**files, **runtime_code([first]).files})
        assert compiled == [name for name in files if name.endswith(".c")]
    # other options, and options that may name files
    (tmp_path / "given.h").touch()
    included = ("-include", str(tmp_path / "given.h"))
    for flags, files in ((("-O0",), first), (included, first), (included, others[0])):
        compiled.clear()
        toolchain.compile_cached({**files, **runtime_code([first]).files}, flags)
        assert len(compiled) > 1


@pytest.mark.parametrize("command", ["/nowhere/cc", "gcc '-O2"])
def test_cc_that_does_not_run_is_named(monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("CC", command)
    with pytest.raises(ToolchainError, match=f"{command}' of the environment variable CC does not run"):
        find_compiler()


def test_zig_wheel_serves_where_the_path_has_no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("ziglang", reason="pip install ziglang")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    assert find_compiler().command == (sys.executable, "-m", "ziglang", "cc")
    assert ctypes.CDLL(str(compile_cached(FILES))).answer() == 42


def test_no_compiler_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ToolchainError, match=r"pip install \"\.\[cross\]\""):
        find_compiler()


def test_unwritable_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        compile_shared(FILES, tmp_path / "missing" / "x.so")


def test_cache_without_a_home_is_private(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = cache_folder()
    assert folder.is_dir()
    assert os.stat(folder).st_mode & 0o077 == 0  # noqa: PTH116


def test_zig_gets_a_cache_that_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.delenv("ZIG_GLOBAL_CACHE_DIR", raising=False)
    asked: list[str] = []

    def answer(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        asked.append(options["env"]["ZIG_GLOBAL_CACHE_DIR"])
        return subprocess.CompletedProcess(command, 0, "zig's clang", "")

    monkeypatch.setattr("subprocess.run", answer)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    find_compiler()
    assert Path(asked[0]).parent.is_dir()
