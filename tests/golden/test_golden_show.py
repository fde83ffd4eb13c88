"""Golden files of displayed archives: update them by ``pytest tests/golden --update-golden``, and review the change."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlfc
from mlfc.archive.describe.memory_map import memory_picture
from tests.show_archive import HEADER, HEADER_PATH, document, write_archive
from tests.unit.test_cli import mlfc as program

FOLDER = Path(__file__).parent / "show"


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("show")
    write_archive(folder / "net.tar")
    metadata = document()
    details = metadata["modules"]["net"]["mlfc"]
    details["operators"][0]["nodes"] = ["conv_1", "relu6_1"]
    details["operators"][2]["macs"] = 256
    details["constants"][0]["sha256"] = "a" * 64
    details["inputs"][0]["scale"] = 0.25
    write_archive(
        folder / "other.tar", metadata, {HEADER_PATH: HEADER.replace("*mask", "*where").replace("224", "192")}
    )

    def shown(*arguments: str) -> str:
        done = program(*arguments, cwd=folder)
        return f"{done.stdout}exit status {done.returncode}\n"

    return {
        "inspect.txt": shown("inspect", "net.tar"),
        "inspect_all.txt": shown("inspect", "net.tar", "--layers", "--weights", "--files"),
        "diff.txt": shown("diff", "net.tar", "other.tar"),
        "memory.svg": memory_picture(mlfc.inspect(folder / "net.tar")["modules"]["net"], "net"),
    }


@pytest.mark.parametrize("name", ["inspect.txt", "inspect_all.txt", "diff.txt", "memory.svg"])
def test_shown_text_is_the_golden_one(name: str, texts: dict[str, str], request: pytest.FixtureRequest) -> None:
    path = FOLDER / name
    if request.config.getoption("--update-golden"):
        FOLDER.mkdir(exist_ok=True)
        path.write_text(texts[name], encoding="utf-8")
    assert texts[name] == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over(texts: dict[str, str]) -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(texts)
