"""Archives with random damage are described or refused, never anything else, and nothing is written."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mlforge
from mlforge.archive.validate import validate
from mlforge.errors import ArchiveError

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits" / "digits_int8.tflite"
MUTATIONS = 150


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    module, params = mlforge.import_model(DIGITS)
    factory = mlforge.build(module, params=params, module_name="digits")
    return mlforge.export_model_library_format(factory, tmp_path_factory.mktemp("good") / "a.tar").read_bytes()


def flipped(data: bytes, generator: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(generator.randint(1, 3)):
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
    return bytes(changed)


def cut(data: bytes, generator: random.Random) -> bytes:
    return data[: generator.randrange(len(data))]


def metadata_digits_changed(data: bytes, generator: random.Random) -> bytes:
    changed, start = bytearray(data), data.index(b'{\n  "mlforge"')
    end = data.index(b"\n}\0", start)
    digits = [index for index in range(start, end) if chr(changed[index]).isdigit()]
    changed[generator.choice(digits)] = ord(generator.choice("0123456789-e."))
    return bytes(changed)


@pytest.mark.parametrize("damage", [flipped, cut, metadata_digits_changed])
def test_damage_is_found(good: bytes, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]) -> None:
    generator = random.Random(11)
    path = tmp_path / "damaged.tar"
    found = 0
    for _ in range(MUTATIONS):
        data = damage(good, generator)
        path.write_bytes(data)
        faults: list[Any] = []
        try:
            mlforge.inspect(path)
            faults = validate(path)
        except ArchiveError as error:
            faults = [error]
        found += bool(faults)
        assert all(str(path) in str(fault) for fault in faults if isinstance(fault, ArchiveError))
        assert list(tmp_path.iterdir()) == [path]
    assert found > MUTATIONS // 2
