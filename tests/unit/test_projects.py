"""Projects: their files, reproducibility, and errors before any file is written."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.errors import ArchiveError, MlfcError, OptionError, OutputError
from mlfc.micro.board.board import boards, find_board, parse_board
from mlfc.micro.project import generate
from mlfc.micro.project.generate import generate_project, templates
from mlfc.micro.project.options import checked_options, parse_options, template_options
from mlfc.micro.project.record import read_record
from mlfc.micro.project.template import ProjectOption
from mlfc.micro.project_api import get_microtvm_template_projects
from mlfc.micro.project_server.protocol import StepError
from mlfc.micro.project_server.steps import arguments_of, environment_of, run_step

DIGITS = Path(__file__).parents[2] / "examples" / "digits" / "digits.onnx"
ON_M4 = {"board": "mps2-an386", "project_type": "standalone"}


@pytest.fixture(scope="module")
def factory() -> Any:
    mod, params = mlfc.import_model(DIGITS)
    return mlfc.build(mod, "c -mcpu=cortex-m4", params, module_name="digits")


@pytest.fixture(scope="module")
def archive(factory: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("archive") / "digits.tar"
    return mlfc.export_model_library_format(factory, place)


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_a_project_has_the_archive_whole_and_extracted(archive: Path, tmp_path: Path) -> None:
    folder = generate_project("makefile", archive, tmp_path / "made", ON_M4)
    assert (folder / "model.tar").read_bytes() == archive.read_bytes()
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.isfile():
                extracted = tar.extractfile(member)
                assert extracted is not None
                assert (folder / "model" / member.name).read_bytes() == extracted.read()
    assert set(read_record(folder).files) == set(contents(folder))
    assert parse_board((folder / "board.toml").read_text(), "board.toml") == boards().get("mps2-an386")
    assert "    make" in (folder / "README.md").read_text()
    assert folder.stat().st_mode & 0o777 == 0o777 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("template", ["makefile", "cmake"])
def test_a_project_is_the_same_every_time(archive: Path, tmp_path: Path, template: str) -> None:
    one = contents(generate_project(template, archive, tmp_path / "one", ON_M4))
    two = contents(generate_project(template, archive, tmp_path / "two", ON_M4))
    assert one == two
    assert str(tmp_path) not in (tmp_path / "one" / "project.json").read_text()


def test_a_board_of_ones_own_is_carried_with_the_project(archive: Path, tmp_path: Path) -> None:
    own = tmp_path / "mine.toml"
    own.write_text(find_board("mps2-an386").text.replace('name = "mps2-an386"', 'name = "mine"', 1))
    folder = generate_project("makefile", archive, tmp_path / "made", {**ON_M4, "board": str(own)})
    assert (folder / "board.toml").read_bytes() == own.read_bytes()
    assert str(tmp_path) not in (folder / "project.json").read_text()
    assert read_record(folder).document["board"] == "mine"


def test_every_template_has_a_server_and_says_which_boards_it_serves(archive: Path) -> None:
    for name in templates():
        template = templates().get(name)
        assert (get_microtvm_template_projects(name) / "microtvm_api_server.py").is_file()
        served = [board for board in boards() if template.refuses(boards().get(board)) is None]
        assert served, name
        for option in template_options(template, boards()):
            assert option.required or option.optional, (name, option.name)


def test_a_model_file_is_compiled_for_the_board(tmp_path: Path) -> None:
    folder = generate_project("makefile", DIGITS, tmp_path / "made", ON_M4)
    assert read_record(folder).module == "digits"
    module = mlfc.inspect(folder / "model.tar")["modules"]["digits"]
    assert module["target"] == ["c -mcpu=cortex-m4"]


def test_one_module_of_several_is_chosen(factory: Any, tmp_path: Path) -> None:
    mod, params = mlfc.import_model(DIGITS)
    other = mlfc.build(mod, "c -mcpu=cortex-m4", params, module_name="other")
    both = mlfc.export_model_library_format([factory, other], tmp_path / "both.tar")
    with pytest.raises(OptionError, match="digits, other"):
        generate_project("makefile", both, tmp_path / "made", ON_M4)
    folder = generate_project("makefile", both, tmp_path / "made", {**ON_M4, "module": "other"})
    makefile = (folder / "Makefile").read_text()
    assert "other_lib0.c" in makefile
    assert "digits_lib0.c" not in makefile


def test_a_folder_that_is_not_empty_stays_as_it_is(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "mine.txt").write_text("mine")
    message = "The specified project dir already exists. To force overwriting it use '-f' or '--force'."
    with pytest.raises(OutputError) as caught:
        generate_project("makefile", archive, tmp_path / "made", ON_M4)
    assert message in str(caught.value)
    assert contents(tmp_path / "made").keys() == {"mine.txt"}
    generate_project("makefile", archive, tmp_path / "made", ON_M4, force=True)
    assert (tmp_path / "made" / "mine.txt").read_text() == "mine"
    # files of the replaced project and their build outputs are deleted
    (tmp_path / "made" / "firmware.elf").write_text("old")
    (tmp_path / "made" / "build").mkdir()
    generate_project("cmake", archive, tmp_path / "made", ON_M4, force=True)
    names = contents(tmp_path / "made").keys()
    assert "mine.txt" in names
    assert "CMakeLists.txt" in names
    assert not names & {"Makefile", "firmware.elf"}
    assert not (tmp_path / "made" / "build").exists()


def test_an_empty_folder_is_filled(archive: Path, tmp_path: Path) -> None:
    (tmp_path / "made").mkdir()
    assert read_record(generate_project("makefile", archive, tmp_path / "made", ON_M4)).template == "makefile"


def test_force_removes_nothing_outside_the_project(archive: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text("kept")
    folder = generate_project("makefile", archive, tmp_path / "made", ON_M4)
    record = json.loads((folder / "project.json").read_text())
    for path in ("../outside.txt", str(outside)):
        (folder / "project.json").write_text(json.dumps({**record, "files": [path]}))
        generate_project("makefile", archive, folder, ON_M4, force=True)
        assert outside.read_text() == "kept"
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "kept.c").write_text("kept")
    (folder / "link").symlink_to(tmp_path / "elsewhere")
    (folder / "project.json").write_text(json.dumps({**record, "files": ["link/kept.c"]}))
    generate_project("makefile", archive, folder, ON_M4, force=True)
    assert (tmp_path / "elsewhere" / "kept.c").exists()


def test_a_fault_in_the_middle_leaves_nothing(archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_args: Any) -> dict[str, bytes]:
        return {"a.c": b"", "a.c/b.c": b""}  # a path cannot be both a file and a folder

    monkeypatch.setattr(generate, "project_files", broken)
    with pytest.raises(OutputError):
        generate_project("makefile", archive, tmp_path / "made", ON_M4)
    assert list(tmp_path.iterdir()) == []


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown_board": (
        {"board": "mps2-an38"},
        "Choice 'mps2-an38' for option 'board' is invalid.*Nearest: mps2-an38",
    ),
    "no_board": ({"board": None}, "Option 'board' is required but was not specified"),
    "unknown_type": ({"project_type": "demo"}, "Choice 'demo' for option 'project_type' is invalid"),
    "unknown_option": ({"speed": "11"}, "Option 'speed' is invalid. Use --list-options"),
    "unknown_module": ({"module": "other"}, "other"),
    "no_vectors": ({"project_type": "selftest"}, "no test vectors.*--test-vectors"),
    "make_in_an_option": ({"cflags": "$(shell touch made)"}, "characters that are special to make or CMake"),
    "a_number_that_is_none": ({"stack_bytes": "many"}, "'many' of option 'stack_bytes'.*an integer"),
    "a_number_below_all": ({"stack_bytes": "-8"}, "'-8' of option 'stack_bytes'.*at least 0"),
    "a_huge_number": ({"stack_bytes": "9" * 5000}, "an integer"),
    "neither_true_nor_false": ({"trace": "maybe"}, "'maybe' of option 'trace'.*true or false"),
    "a_board_of_a_file_that_is_not_there": ({"board": "none.toml"}, "cannot read the board file"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_made_is_refused_before_anything_is_written(archive: Path, tmp_path: Path, name: str) -> None:
    options, message = REFUSED[name]
    if name == "no_vectors" and "selftest" not in templates().get("makefile").project_types:
        pytest.fail("the template makefile makes no self-tests")
    with pytest.raises(OptionError, match=message):
        generate_project("makefile", archive, tmp_path / "made", {**ON_M4, **options})
    assert list(tmp_path.iterdir()) == []


def test_a_board_that_the_template_does_not_serve_is_refused(archive: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="template cmake does not support board 'arduino_mega'"):
        generate_project("cmake", archive, tmp_path / "made", {**ON_M4, "board": "arduino_mega"})


def test_archives_of_the_other_executor_are_refused_with_what_to_do(tmp_path: Path) -> None:
    mod, params = mlfc.import_model(DIGITS)
    graph = mlfc.build(mod, "c -mcpu=cortex-m4", params, executor="graph", module_name="digits")
    path = mlfc.export_model_library_format(graph, tmp_path / "graph.tar", test_vectors=1)
    refused = (
        ("package", path, {"project_type": "standalone"}, "aot"),
        ("makefile", path, {**ON_M4, "project_type": "selftest"}, "aot"),
    )
    for template, model, options, executor in refused:
        with pytest.raises(OptionError, match=f"--executor {executor}"):
            generate_project(template, model, tmp_path / "made", options)
        assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("data", [b"", b"not a tar", b"\x7fELF" + bytes(600)])
def test_what_is_no_archive_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "model.tar").write_bytes(data)
    with pytest.raises(MlfcError) as caught:
        generate_project("makefile", tmp_path / "model.tar", tmp_path / "made", ON_M4)
    assert caught.value.exit_status == 2
    assert not (tmp_path / "made").exists()


def test_names_of_files_reach_no_makefile_unchecked(factory: Any, tmp_path: Path) -> None:
    plain = mlfc.export_model_library_format(factory, tmp_path / "plain.tar", format_version=5)
    evil = tmp_path / "evil.tar"
    with tarfile.open(plain) as old, tarfile.open(evil, "w") as made:
        for member in old:
            data = old.extractfile(member)
            if member.name.endswith("_lib1.c"):
                member.name = member.name.replace("digits_lib1.c", "digits_lib1.$(shell touch hacked).c")
            made.addfile(member, data)
    with pytest.raises(ArchiveError):
        generate_project("makefile", evil, tmp_path / "made", ON_M4)
    assert not (tmp_path / "made").exists()


DAMAGED = {
    "empty": b"",
    "not_an_object": b"[]",
    "another_format": b'{"format": 2}',
    "nothing_in_it": b'{"format": 1}',
    "nested_beyond_sense": b"[" * 100_000,
    "not_text": b"\xff\xff",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_record_is_one_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "project.json").write_bytes(DAMAGED[name])
    with pytest.raises(OptionError, match=r"project\.json"):
        read_record(tmp_path)


def test_options_are_read_and_checked() -> None:
    assert parse_options(["cflags=-Os -DX=1", "trace=true"]) == {"cflags": "-Os -DX=1", "trace": "true"}
    for text in ("cflags", "=1"):
        with pytest.raises(OptionError, match=r"Invalid option format: .*\. Please use OPTION=VALUE\."):
            parse_options([text])
    options = (
        ProjectOption("count", "", "int", default=3, optional=("build",)),
        ProjectOption("trace", "", "bool", optional=("build",)),
        ProjectOption("port", "", required=("flash",)),
    )
    assert checked_options(options, {}, "build") == {"count": 3, "trace": None, "port": None}
    given = {"count": "7", "trace": "off", "port": "/dev/ttyACM0"}
    assert checked_options(options, given, "flash") == {"count": 7, "trace": False, "port": "/dev/ttyACM0"}
    assert checked_options(options, {"count": 4, "trace": True}, "build") == {"count": 4, "trace": True, "port": None}
    with pytest.raises(OptionError, match="Option 'port' is required"):
        checked_options(options, {}, "flash")


def test_commands_take_the_options_that_are_given() -> None:
    command = {
        "arguments": ["make", "CFLAGS={cflags}", "{trace:TRACE=1}", "{verbose:V=1}", "-j{jobs}", "{empty}"],
        "environment": {"PLACE": "{place}", "OTHER": "{other}"},
    }
    options = {"cflags": "-Os -g", "trace": True, "verbose": False, "jobs": 0, "empty": "", "place": "/x"}
    assert arguments_of(command, options) == ["make", "CFLAGS=-Os -g", "TRACE=1", "-j0"]
    environment = environment_of(command, options)
    assert environment["PLACE"] == "/x"
    assert "OTHER" not in environment
    assert "MAKEFLAGS" not in environment


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (
            {"arguments": ["no-such-tool"], "install": "Get it there."},
            r"no-such-tool is not on the PATH\. Get it there\.",
        ),
        ({"arguments": ["sh"], "install": "", "needs": {"no-such-cc": "Get it."}}, r"no-such-cc is not .* Get it\."),
        (
            {"arguments": ["sh", "-c", "seq 100; echo no probe found; exit 3"], "install": ""},
            r"(?s)flashing failed: sh ended with status 3:\n  87\n.*100\n  no probe found$",
        ),
        ({"arguments": [], "install": ""}, "names no program"),
    ],
)
def test_a_tool_that_is_missing_or_fails_is_one_message(tmp_path: Path, command: Any, message: str) -> None:
    with pytest.raises(StepError, match=message):
        run_step("flashing", [command], tmp_path, {})
