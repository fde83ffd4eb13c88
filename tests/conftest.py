"""Fixtures that every kind of test uses, and the switch that forbids skips."""

from __future__ import annotations

import gc
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from mlfc.runtime.devices.device import Device

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
# the same examples in every run: a new one that fails is for whoever looks for it, not for whoever comes by
# and no deadline: how long one takes says more of what else the machine does
hypothesis.settings.register_profile(
    "seeded", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("seeded")

# `make test` hands its own flags and level down, which would change what the projects that tests make print
for _name in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS"):
    os.environ.pop(_name, None)

# where the environment forbids Python to keep what it compiled, each process would compile the whole product again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# graphs of nodes live long: looking at all of them again and again takes a tenth of a compiler's time
gc.set_threshold(50_000, 20, 50)

# seconds after which what hangs is given up, so that a test of it fails and does not hang; no test passes by it
WATCHDOG = 600

STRICT = bool(os.environ.get("MLFC_TEST_STRICT"))


# Debian's packages of the programs that tests call; `need` and the skips name them
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
# in our words, make's and shells'
_NOT_THERE = re.compile(
    r"([\w+-]+) is not on the PATH|make(?:\[\d+\])?: ([\w+-]+): No such file|([\w+-]+): (?:command )?not found"
)
_PRODUCT = Path(__file__).resolve().parents[1] / "src"


def missing_program(error: BaseException, traceback: Iterable[str]) -> str | None:
    """Return what to install where a test ended because a program is not there; None where it ended otherwise.

    Parameters
    ----------
    error : BaseException
    traceback : iterable of str
        The files that it passed. A program that the product does not find must end in an error of its own.
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
    """Skip a test that calls a program that is not there; with MLFC_TEST_STRICT set, a skip is a failure.

    CI has everything that tests ask for.
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes longest, so that no worker is left with it at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person, never a robot, take the current output as the golden files."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is printed now")


@pytest.fixture(scope="session", autouse=True)
def _built_once(tmp_path_factory: pytest.TempPathFactory) -> Generator[None, None, None]:
    """Share builds among the tests of all workers, whose folders are in the session's folder."""
    from mlfc.library.cache import cache_folder
    from mlfc.micro.firmware import planned_memory
    from mlfc.micro.run import firmware_build
    from tests import object_cache, session_cache

    base = tmp_path_factory.getbasetemp()
    with pytest.MonkeyPatch.context() as monkeypatch:
        # zig compiles the C library of a system when it first links for it: once, whatever cache a test has for itself
        monkeypatch.setenv(
            "ZIG_GLOBAL_CACHE_DIR", os.environ.get("ZIG_GLOBAL_CACHE_DIR") or str(cache_folder() / "zig")
        )
        monkeypatch.setattr(firmware_build, "run", object_cache.firmware(firmware_build.run))
        monkeypatch.setattr(planned_memory, "run", object_cache.trial(planned_memory.run))
        session_cache.install((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "built", monkeypatch)
        yield


_QUICK = ("-O1", "-fexpensive-optimizations", "-Wno-ignored-optimization-argument")


@contextmanager
def flags_for_o3(quick: Sequence[str]) -> Generator[None, None, None]:
    """Build libraries of this machine with other flags than -O3, and without AVX2.

    Compilers then need not read the header of all instructions, which takes half a second a file. LLVM's code says
    itself what is fused, and is not optimized at all.
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

    flags = [word for flag in toolchain.FLAGS for word in (quick if flag == "-O3" else (flag,))]
    real = toolchain.run_tool

    def run_tool(command: Sequence[str], folder: Path) -> None:
        # zig has names of its own for what processors have
        native = (toolchain.NATIVE, "-mno-avx2") if "ziglang" not in command else (toolchain.NATIVE,)
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
    """Let libraries of this machine be built in a third of the time: whole models, whose operators are tested alone.

    Products and sums are fused as with -O3, so floats have the same bits; clang always does, and warns of the flag.
    """
    with flags_for_o3(_QUICK):
        yield


@pytest.fixture
def quick_build() -> Generator[None, None, None]:
    """Do what `quick_builds` does, for one test of a module."""
    with flags_for_o3(_QUICK):
        yield


@pytest.fixture(scope="module")
def unoptimized_builds() -> Generator[None, None, None]:
    """Let libraries of this machine be built in a tenth of the time: of integers, or of floats for one another."""
    with flags_for_o3(("-O0",)):
        yield


@pytest.fixture(scope="module")
def quick_kernels() -> Generator[None, None, None]:
    """Let the driver's compiler of OpenCL not optimize: for whole models, whose kernels are tested alone."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("PYOPENCL_BUILD_OPTIONS", "-cl-opt-disable")  # pyopencl adds them to those of a program
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """Return the folder of models and files from other tools that stands beside the project."""
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
    """Return the first OpenCL device, or skip with what the product says is missing."""
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
