"""A process that reads untrusted files: it takes seconds to start, so each worker has one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hostile.good_archives import compiled
from tests.hostile.reading import Reader


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the reader's working, home and cache folder."""
    return tmp_path_factory.mktemp("reader")


@pytest.fixture(scope="session")
def reader(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Return a process that reads archives, blobs and models."""
    good = tmp_path_factory.mktemp("good") / "good.tar"
    good.write_bytes(compiled())
    process = Reader(place, good)
    yield process
    process.close()


@pytest.fixture
def away_from_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Change to an empty home folder without credentials."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
