"""Fixtures that every kind of test uses, and the switch that forbids skips."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Generator
from pathlib import Path

import hypothesis
import pytest

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

# seconds after which what hangs is given up, so that a test of it fails and does not hang; no test passes by it
WATCHDOG = 600

STRICT = bool(os.environ.get("MLFC_TEST_STRICT"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, None]:
    """With MLFC_TEST_STRICT set, a skip is a failure: CI has everything that tests ask for."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy's wrapper
    if STRICT and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let a person, never a robot, take the current output as the golden files."""
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is printed now")


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
    """Return what runs a command of ours that must succeed, and gives what it prints."""
    from typer.testing import CliRunner

    from mlfc.cli.main import app

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


def need(program: str, package: str) -> str:
    """Return the path of a program, or skip with the Debian package that has it."""
    path = shutil.which(program)
    if path is None:
        pytest.skip(f"{program} is not on the PATH; on Debian: apt-get install {package}")
    return path
