"""Fixtures that every kind of test uses."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[1].parent / "shared"


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
