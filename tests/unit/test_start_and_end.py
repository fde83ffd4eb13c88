"""The environment of a command: interrupts, closed streams, folders for temporary files, invalid times.

Each failure prints one line with its cause, sets a status, and leaves no partial output.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.conftest import need
from tests.unit.test_cli import mlfc, succeeded

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits.onnx"
PROGRAM = (sys.executable, "-m", "mlfc")
# a stand-in for a module whose import takes long, which reports when it starts
SLOW = """
import os, signal, threading
os.write(1, b"importing\\n")
threading.Event().wait(120)
"""


def interruptible(*command: str) -> list[str]:
    """Return a command that interrupts end even if the tests ignore them, like background jobs of a shell."""
    code = "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])"
    return [sys.executable, "-c", code, *command]


def run(*arguments: object, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **options.pop("env", {})}  # type: ignore[dict-item]
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)], capture_output="stdout" not in options, text=True, check=False,
        env=environment, **options,
    )  # fmt: skip


@pytest.mark.parametrize("program", [PROGRAM, (sys.executable, "-c", "from mlfc.__main__ import run; run()")])
def test_an_interrupt_while_the_program_is_imported_is_one_line(program: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text(SLOW)
    process = subprocess.Popen(
        interruptible(*program, "boards"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "importing\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_an_interrupt_of_a_command_is_one_line(tmp_path: Path) -> None:
    code = (
        "import os, threading, mlfc.cli.main as main\n"
        "import mlfc.cli.listings\n"
        "def wait(*_, **__):\n    os.write(1, b'running\\n')\n    threading.Event().wait(120)\n"
        "main.typer.Typer.__call__ = wait\n"
        "main.run()\n"
    )
    process = subprocess.Popen(
        interruptible(sys.executable, "-c", code),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert (process.returncode, out, err) == (130, "", "interrupted\n")


def test_the_installed_program_starts_where_nothing_is_imported() -> None:
    text = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text(encoding="utf-8")
    assert 'mlfc = "mlfc.__main__:run"' in text
    done = subprocess.run(
        [sys.executable, "-c", "import sys, mlfc.__main__; print(*sys.modules)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert not {"typer", "numpy", "mlfc.cli"} & set(done.stdout.split())


def test_a_closed_output_is_told_of_before_any_work(tmp_path: Path) -> None:
    line = f'exec "{sys.executable}" -m mlfc compile "{DIGITS}" -o "{tmp_path}/a.tar" >&-'
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, text=True, check=False)
    expected = "error: standard output: is closed. Redirect it to a file or to /dev/null [MLF130]\n"
    assert (done.returncode, done.stderr) == (2, expected)
    assert not any(tmp_path.iterdir())


# runs commands in forked processes, after importing the program once, with standard output redirected to a full device
# and then to a pipe without a reader, and prints the statuses
FORKING = """
import os, sys
import mlfc.cli.main, mlfc.ops
reading, writing = os.pipe()
os.close(reading)
for output, commands in (os.open("/dev/full", os.O_WRONLY), sys.argv[1:]), (writing, sys.argv[1:2]):
    os.dup2(output, 1)
    for command in commands:
        child = os.fork()
        if not child:
            sys.argv = ["mlfc", *command.split()]
            mlfc.cli.main.run()
            os._exit(0)
        os.write(2, b"status %d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_output_is_named_and_a_reader_that_leaves_ends_the_program_without_a_word(unbuffered: str) -> None:
    if not Path("/dev/full").is_char_device():
        pytest.skip("no /dev/full here")
    commands = ("operators", "operators --json", "--help", "--version")
    done = subprocess.run(
        [sys.executable, "-c", FORKING, *commands], stderr=subprocess.PIPE, text=True, check=True,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )  # fmt: skip
    expected = (
        "error: standard output: cannot be written: No space left on device. Redirect it to a file with room [MLF130]\n"
    )
    assert done.stderr == f"{expected}status 2\n" * len(commands) + "status 141\n"


def test_other_closed_streams_are_no_place_for_files() -> None:
    line = f'exec "{sys.executable}" -m mlfc targets <&- 2>&-'
    done = subprocess.run(["sh", "-c", line], stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "cortex-m4" in done.stdout


@pytest.mark.parametrize("value", ["", "now", "-1", "1.5", "9" * 400, "\u0663", "253402300800"])
def test_a_time_that_is_none_is_named(value: str, tmp_path: Path) -> None:
    done = mlfc("compile", DIGITS, "-o", "a.tar", cwd=tmp_path, SOURCE_DATE_EPOCH=value)
    assert done.returncode == 2
    assert done.stderr.startswith("error: SOURCE_DATE_EPOCH: '")
    assert "is not a time in seconds since 1970. Set it to a whole number" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert not any(tmp_path.iterdir())


def test_compilers_do_not_see_a_time_that_is_none(tmp_path: Path) -> None:
    """Hide the invalid time from Clang, which would not run at all."""
    environment = {"SOURCE_DATE_EPOCH": "", "CC": need("clang", "clang"), "XDG_CACHE_HOME": str(tmp_path)}
    done = run("run", DIGITS, "--fill", "random", env=environment)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.usefixtures("unoptimized_builds")
@pytest.mark.parametrize("kind", ["missing", "a file"])
def test_another_folder_serves_where_tmpdir_is_none(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, out = tmp_path / "tmp", tmp_path / "out"
    out.mkdir()
    if kind == "a file":
        place.write_bytes(b"")
    # a process looks for the folder once
    monkeypatch.setattr(tempfile, "tempdir", None)
    succeeded("compile", DIGITS, "--emit", "so", "-o", "a.so", cwd=out, TMPDIR=str(place))
    assert {path.name for path in out.iterdir()} == {"a.so", "a.h"}


FULL = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* Files below a folder take so many bytes and no more, as on a disk that fills up, or where a quota is spent. */
ssize_t write(int file, const void* data, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  char link[64], path[4096];
  ssize_t length;
  const char* folder = getenv("TEST_FULL_FOLDER");
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "write");
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  length = readlink(link, path, sizeof path - 1);
  if (folder != NULL && size > 64 && length > 0) {
    path[length] = 0;
    if (strncmp(path, folder, strlen(folder)) == 0) {
      errno = atoi(getenv("TEST_FULL_ERROR"));
      return -1;
    }
  }
  return real(file, data, size);
}
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in for a full disk is one for Linux")
@pytest.mark.parametrize(("command", "error"), [("so", "ENOSPC"), ("run", "EDQUOT")])
def test_a_folder_for_temporary_files_that_is_full_is_named(command: str, error: str, tmp_path: Path) -> None:
    import errno

    (tmp_path / "full.c").write_text(FULL)
    stand_in = tmp_path / "full.so"
    subprocess.run([need("gcc", "gcc"), "-shared", "-fPIC", "-o", stand_in, tmp_path / "full.c", "-ldl"], check=True)
    place, out = tmp_path / "tmp", tmp_path / "out"
    place.mkdir()
    out.mkdir()
    number = getattr(errno, error)
    environment = {
        "LD_PRELOAD": str(stand_in), "TMPDIR": str(place), "TEST_FULL_FOLDER": str(place),
        "TEST_FULL_ERROR": str(number), "XDG_CACHE_HOME": str(out / "cache"), "CC": shutil.which("gcc") or "",
    }  # fmt: skip
    given = ("compile", DIGITS, "--emit", "so", "-o", out / "a.so") if command == "so" else ("run", DIGITS)
    done = run(*given, env=environment)
    expected = f"error: {place}: cannot be written: {os.strerror(number)}. Free some space there, or set TMPDIR"
    assert done.returncode == 2
    assert done.stderr.startswith(expected)
    assert len(done.stderr.splitlines()) == 1
    assert not (out / "a.so").exists()
    assert not any(place.iterdir())


def test_warnings_are_lines_like_others(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache").chmod(0o777)
    done = run("run", DIGITS, "--fill", "random", env={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert done.returncode == 0
    (line,) = done.stderr.splitlines()
    assert line.startswith("warning: the cache of built libraries in ")
