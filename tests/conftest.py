"""Fixtures shared by all tests, and strict mode (MLFC_TEST_STRICT), in which a skip is a failure."""

from __future__ import annotations

import fcntl
import gc
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from mlfc.runtime.devices.device import Device

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
# every run uses the same examples, so that an unrelated change never uncovers a new failure; no deadline, because the
# time of an example depends on the load of the machine
hypothesis.settings.register_profile(
    "seeded", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("seeded")

# `make test` exports its flags and level, which would change the output of the projects that tests build with make
for _name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(_name, None)

# without bytecode files each process would compile the whole package again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# graphs of nodes live long, and scanning them takes an eighth of the compiler's time: collect garbage between modules
gc.set_threshold(500_000, 20, 50)

# seconds after which a hanging call is aborted, so that its test fails instead of hanging; no passing test waits so
# long
WATCHDOG = 600

STRICT = bool(os.environ.get("MLFC_TEST_STRICT"))


# Debian packages of the programs that tests call, for the messages of `need` and of skips
PACKAGES = {
    "ar": "binutils", "avr-g++": "gcc-avr", "avr-gcc": "gcc-avr", "c++": "g++", "cc": "gcc", "cmake": "cmake",
    "clang": "clang", "docker-registry": "docker-registry", "g++": "g++", "gcc": "gcc", "git": "git",
    "ld": "binutils", "make": "make", "mandoc": "mandoc",
    "ninja": "ninja-build", "nm": "binutils", "node": "nodejs", "objcopy": "binutils", "objdump": "binutils",
    "readelf": "binutils", "rustc": "rustc", "simavr": "simavr", "size": "binutils", "strip": "binutils",
    "tcc": "tcc",
    "qemu-arm": "qemu-user", "qemu-system-arm": "qemu-system-arm", "qemu-system-riscv32": "qemu-system-misc",
    **{f"arm-none-eabi-{tool}": "gcc-arm-none-eabi" for tool in ("gcc", "g++", "ar", "nm", "objdump", "size")},
    **{f"riscv64-unknown-elf-{tool}": "gcc-riscv64-unknown-elf" for tool in ("gcc", "ar", "nm", "objdump", "size")},
}  # fmt: skip
# as worded by mlfc, make and shells
_NOT_THERE = re.compile(
    r"([\w+-]+) is not on the PATH|make(?:\[\d+\])?: ([\w+-]+): No such file|([\w+-]+): (?:command )?not found"
)
_PRODUCT = Path(__file__).resolve().parents[1] / "src"


def missing_program(error: BaseException, traceback: Iterable[str]) -> str | None:
    """Return the install message if a test failed because a program is missing; None if it failed for another reason.

    Parameters
    ----------
    error : BaseException
    traceback : iterable of str
        The files in the traceback. A program that mlfc itself does not find must raise an error of mlfc.
    """
    if isinstance(error, FileNotFoundError):
        calls_it = not any(Path(file).is_relative_to(_PRODUCT) for file in traceback)
        names = {str(error.filename)} if calls_it else set()
    else:
        said = [error, getattr(error, "stdout", None), getattr(error, "stderr", None)]
        text = "\n".join(part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in said)
        names = {name for found in _NOT_THERE.findall(text) for name in found}
    for name in sorted(names & {*PACKAGES}):
        if shutil.which(name) is None:
            return f"{name} is not on the PATH; on Debian: apt-get install {PACKAGES[name]}"
    return None


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call: pytest.CallInfo[None]) -> Generator[None, pytest.TestReport, None]:
    """Skip a test that calls a missing program; with MLFC_TEST_STRICT set, a skip is a failure.

    CI has all programs that tests call.
    """
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's wrapper
    if report.failed and call.excinfo is not None:
        missing = missing_program(call.excinfo.value, (str(entry.path) for entry in call.excinfo.traceback))
        if missing is not None:
            report.outcome = "skipped"
            report.longrepr = (report.location[0], report.location[1] or 0, f"Skipped: {missing}")
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect in one worker after the other where the first one compiles the modules of tests to bytecode."""
    with Path(__file__).open("rb") as file:
        if not Path(__file__).with_name("unit").joinpath("__pycache__").exists():  # the folder that comes last
            fcntl.flock(file, fcntl.LOCK_EX)
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run slow tests first, so that no worker starts one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that overwrites the golden files with the current output; only people use it, never CI."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is printed now")


@pytest.fixture(scope="session", autouse=True)
def _commands_made_once() -> Generator[None, None, None]:
    """Make the parser of the command line once, and not for each command that tests call in this process."""
    from typer import main, testing

    once = cache(main.get_command)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(main, "get_command", once)
        monkeypatch.setattr(testing, "_get_command", once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _built_once(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Share builds among the tests of all workers through a folder next to the workers' folders."""
    from mlfc.library.cache import cache_folder
    from mlfc.micro.firmware import planned_memory
    from mlfc.micro.run import firmware_build
    from tests import object_cache, session_cache

    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as monkeypatch:
        # zig compiles a system's C library when it first links for it; a shared folder avoids that in each test's own
        # cache
        monkeypatch.setenv(
            "ZIG_GLOBAL_CACHE_DIR", os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(cache_folder() / "zig")
        )
        monkeypatch.setattr(firmware_build, "run", object_cache.firmware(firmware_build.run))
        monkeypatch.setattr(planned_memory, "run", object_cache.trial(planned_memory.run))
        session_cache.install((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built", monkeypatch)
        yield


_QUICK = ("-O1", "-fexpensive-optimizations", "-Wno-ignored-optimization-argument")


@cache
def _library_flags() -> tuple[str, ...]:
    from mlfc.library import toolchain

    return toolchain.FLAGS


@contextmanager
def flags_for_o3(quick: Sequence[str]) -> Generator[None, None, None]:
    """Build libraries for the host with `quick` in place of -O3, and without AVX2.

    Compilers then skip the header of all intrinsics, which takes half a second per file. LLVM code contains its fused
    operations explicitly and is not optimized.
    """
    from mlfc.codegen.llvm import objects
    from mlfc.codegen.llvm.machine import Machine
    from mlfc.library import toolchain
    from mlfc.target.llvm import architecture, host_triple

    optimize_module, target_machine = objects.optimize_module, Machine.target_machine

    def is_here(machine: Machine) -> bool:
        return architecture(machine.triple) == architecture(host_triple())

    def optimized(parsed: Any, machine: Machine, optimize: str = "speed") -> None:
        if optimize != "speed" or not is_here(machine):
            optimize_module(parsed, machine, optimize)

    def generator(machine: Machine, level: int = 3) -> Any:
        return target_machine(machine, 0 if level == 3 and is_here(machine) else level)

    flags = [word for flag in _library_flags() for word in (quick if flag == "-O3" else (flag,))]
    real = toolchain.run_tool

    def run_tool(command: Sequence[str], folder: Path) -> None:
        # zig uses other names for CPU features
        native = (toolchain.NATIVE, *(() if {"ziglang", "-mno-avx2"} & {*command} else ("-mno-avx2",)))
        real([word for each in command for word in (native if each == toolchain.NATIVE else (each,))], folder)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(toolchain, "FLAGS", tuple(flags))
        monkeypatch.setattr(objects, "optimize_module", optimized)
        monkeypatch.setattr(Machine, "target_machine", generator)
        if platform.machine() in ("x86_64", "AMD64"):
            monkeypatch.setattr(toolchain, "run_tool", run_tool)
        yield


@pytest.fixture(scope="module")
def quick_builds() -> Generator[None, None, None]:
    """Build libraries for the host in a third of the time, for whole models whose operators have separate tests.

    Multiply-adds are fused as with -O3, so floats have the same bits; clang always fuses, and warns about the flag.
    """
    with flags_for_o3(_QUICK):
        yield


@pytest.fixture(scope="module", autouse=True)
def _quick_outside_native(request: pytest.FixtureRequest) -> None:
    """Apply `quick_builds` outside of tests/native, which builds each operator with the flags of libraries."""
    if request.path.parent.name in ("hostile", "interop", "unit"):
        request.getfixturevalue("quick_builds")


@pytest.fixture
def quick_build() -> Generator[None, None, None]:
    """Apply `quick_builds` to one test of a module."""
    with flags_for_o3(_QUICK):
        yield


@pytest.fixture(scope="module")
def unoptimized_builds() -> Generator[None, None, None]:
    """Build libraries for the host in a tenth of the time, for integers, or floats compared only with each other."""
    with flags_for_o3(("-O0",)):
        yield


@pytest.fixture(scope="module")
def quick_kernels() -> Generator[None, None, None]:
    """Disable optimization in the OpenCL driver's compiler, for whole models whose kernels have separate tests."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # pyopencl adds them to a program's options
        yield


@pytest.fixture(scope="module", autouse=True)
def _garbage_of_modules() -> Generator[None, None, None]:
    """Collect the garbage of modules with many objects, then exclude what is left from further collections."""
    yield
    young, *older = gc.get_count()
    if young > 200_000 or any(older):
        gc.collect()
        gc.freeze()


def pytest_collection_finish() -> None:
    """Exclude modules and tests from garbage collections."""
    gc.freeze()


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder ``shared/`` next to the checkout, with models and files from other tools."""
    if not SHARED.is_dir():
        pytest.skip("the folder shared/ with models from other projects is not beside this checkout")
    return SHARED


@pytest.fixture(scope="session")
def models(shared: Path) -> Path:
    """Return the folder of real TFLite models."""
    return shared / "models"


@pytest.fixture
def command() -> Callable[..., str]:
    """Return a function that runs an mlfc command, requires success, and returns its output."""
    from typer.testing import CliRunner

    from mlfc.cli.main import app

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def need_opencl() -> Device:
    """Return the first OpenCL device, or skip with mlfc's message about what is missing."""
    from mlfc.errors import DeviceError
    from mlfc.runtime.devices.device import device

    found = device("opencl")
    try:
        found.api  # noqa: B018  (opens it)
    except DeviceError as error:
        pytest.skip(str(error))
    return found


def need(program: str, package: str) -> str:
    """Return the path of a program, or skip with the Debian package that has it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not on the PATH; on Debian: apt-get install {package}")
    return path
