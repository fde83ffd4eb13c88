"""Builds from the session cache equal those that the same command would produce."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests import session_cache
from tests.conftest import need


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the calls of the command that replaces make, with an empty cache."""
    calls: list[str] = []

    def run(command: list[str], folder: Path, _timeout: float) -> Any:
        calls.append(" ".join(command))
        if "fail" in command:
            return session_cache.subprocess.CompletedProcess(command, 2, "", "no")
        (folder / "out").mkdir(exist_ok=True)
        (folder / "out" / "elf").write_text("".join(path.read_text() for path in sorted(folder.glob("*.c"))))
        return session_cache.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(session_cache, "_FOLDER", [tmp_path / "built"])
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(session_cache.firmware_build, "run", session_cache._make(run))
    return calls


def build(folder: Path, text: str, *command: str) -> Any:
    folder.mkdir(exist_ok=True)
    (folder / "main.c").write_text(text)
    return session_cache.firmware_build.run(["make", *command], folder, 1.0)


def test_the_same_is_built_once(made: list[str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        assert build(tmp_path / name, "a").returncode == 0
        assert (tmp_path / name / "out" / "elf").read_text() == "a"
    assert made == ["make"]


def test_other_sources_commands_and_tools_are_built_again(
    made: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path / "one", "a")
    build(tmp_path / "two", "b")
    assert (tmp_path / "two" / "out" / "elf").read_text() == "b"
    build(tmp_path / "three", "a", "TRACE=1")
    monkeypatch.setenv("PATH", str(tmp_path))
    build(tmp_path / "four", "a")
    assert made == ["make", "make", "make TRACE=1", "make"]


def test_what_fails_is_not_kept(made: list[str], tmp_path: Path) -> None:
    for name in ("one", "two"):
        result = build(tmp_path / name, "a", "fail")
        assert (result.returncode, result.stderr) == (2, "no")
    assert len(made) == 2


def test_builders_may_race(made: list[str], tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for result in pool.map(lambda name: build(tmp_path / f"race{name}", "a"), range(8)):
            assert result.returncode == 0
    assert {(tmp_path / f"race{name}" / "out" / "elf").read_text() for name in range(8)} == {"a"}
    assert not list((tmp_path / "built").glob("partial-*"))


def test_headers_that_a_source_does_not_include_are_not_part_of_its_object(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "built").mkdir()
    monkeypatch.setattr(session_cache, "_FOLDER", [tmp_path / "built"])
    compiled: list[str] = []

    def real(command: list[str], folder: Path) -> None:
        compiled.append(folder.name)
        (folder / command[-1]).write_text(folder.name)

    for name, used, other in (("first", "1", "1"), ("second", "1", "2"), ("third", "2", "2")):
        folder = tmp_path / name
        folder.mkdir()
        for file, text in {"a.c": '#include "used.h"\n', "used.h": used, "other.h": other}.items():
            (folder / file).write_text(text)
        session_cache._tool(real)([need("cc", "gcc"), "-I.", "-c", "a.c", "-o", "a.c.o"], folder)
        assert (folder / "a.c.o").read_text() == compiled[-1]
    assert compiled == ["first", "third"]
