"""A model with open extents on an emulated microcontroller: the C interpreter, without a heap, on test vectors."""

from __future__ import annotations

from pathlib import Path

import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.planned_memory import plan_table
from mlfc.micro.memory.memory_table import WORKSPACE
from mlfc.micro.project.generate import generate_project
from mlfc.micro.run.emulator import emulated_archive
from mlfc.micro.run.project_run import run_selftest
from tests.vm_models import two_layers

# what this machine computes is not what is tested here
pytestmark = pytest.mark.usefixtures("unoptimized_builds")
BOARD = "mps2-an386"


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive for the board's core: the least rows, the most, and some between them."""
    module, params = two_layers(4)
    factory = mlfc.build(module, find_board(BOARD).target, params, executor="vm", module_name="net")
    path: Path = mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("vm") / "net.tar", test_vectors=3)
    return path


@pytest.fixture(scope="module")
def unbounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module, params = two_layers()
    factory = mlfc.build(module, params=params, executor="vm", module_name="net")
    path: Path = mlfc.export_model_library_format(factory, tmp_path_factory.mktemp("vm") / "net.tar")
    return path


def test_vectors_of_all_batches_hold_on_a_cortex_m(archive: Path) -> None:
    found = run_selftest(archive, find_board(BOARD), cflags="-O1")
    assert found.passed
    assert [line.partition(":")[0] for line in found.lines[:3]] == [f"PASS net, vector {index}" for index in range(3)]


def test_memory_of_a_board_is_the_work_area(archive: Path) -> None:
    module = mlfc.archive.inspect(archive)["modules"]["net"]
    details = mlfc.archive.rebuild(archive)[0].interface()
    rows = [row for row in plan_table(details, find_board(BOARD)).rows if row.what == WORKSPACE]
    assert [row.nbytes for row in rows] == [module["vm"]["work_bytes"]]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"project_type": "standalone"}, "only projects of the type selftest run.*--type selftest"),
        ({"project_type": "host_driven"}, "only projects of the type selftest run"),
        ({"project_type": "selftest", "board": "arduino_mega"}, "arduino_mega does not support"),
    ],
)
def test_projects_refuse_what_they_cannot_run(
    archive: Path, options: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=said):
        generate_project("makefile", archive, tmp_path / "project", {"board": BOARD, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_project_of_its_self_test_is_made(archive: Path, tmp_path: Path) -> None:
    folder = generate_project("makefile", archive, tmp_path / "project", {"board": BOARD, "project_type": "selftest"})
    assert (folder / "crt/src/runtime/crt/vm/run.c").is_file()
    with pytest.raises(OptionError, match="template zephyr does not support"):
        generate_project("zephyr", archive, tmp_path / "z", {"board": "nucleo_l4r5zi", "project_type": "selftest"})


def test_firmware_without_bounds_says_how_to_get_them(unbounded: Path, tmp_path: Path) -> None:
    said = r"has no bound, and firmware has no heap.*--shape x=batch:1\.\.8,8"
    with pytest.raises(OptionError, match=said):
        generate_project("makefile", unbounded, tmp_path / "project", {"board": BOARD, "project_type": "selftest"})
    with pytest.raises(OptionError, match=said):
        emulated_archive(unbounded, find_board(BOARD))


def test_a_run_with_given_inputs_is_refused(archive: Path) -> None:
    with pytest.raises(OptionError, match=r"inputs have no fixed size.*--selftest"):
        emulated_archive(archive, find_board(BOARD))
