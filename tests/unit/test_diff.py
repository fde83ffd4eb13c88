"""Comparing archives: no differences between equal ones, and every single change by name."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import mlfc
from mlfc.errors import ArchiveError, OptionError
from tests.show_archive import CODE, CODE_PATH, HEADER, HEADER_PATH, document, write_archive
from tests.unit.test_cli import DIGITS, succeeded
from tests.unit.test_cli import mlfc as program

Metadata = dict[str, Any]
FIXTURES = "fixtures/tvm-0.14"


def details(metadata: Metadata) -> Metadata:
    found: Metadata = metadata["modules"]["net"]["mlfc"]
    return found


def rename_node(metadata: Metadata) -> None:
    details(metadata)["operators"][0]["nodes"] = ["conv_1", "relu6"]


def change_macs(metadata: Metadata) -> None:
    details(metadata)["operators"][2]["macs"] = 1024


def drop_operator(metadata: Metadata) -> None:
    details(metadata)["operators"].pop()
    details(metadata)["plan"] = details(metadata)["plan"][:2]


def change_weights(metadata: Metadata) -> None:
    details(metadata)["constants"][1]["sha256"] = "3" * 64


def rename_weights(metadata: Metadata) -> None:
    details(metadata)["constants"][1]["name"] = "kernel"


def drop_weights(metadata: Metadata) -> None:
    del details(metadata)["constants"][0]


def grow_constants(metadata: Metadata) -> None:
    details(metadata)["memory"]["constants_bytes"] = 612
    metadata["modules"]["net"]["memory"]["functions"]["main"][0]["constants_size_bytes"] = 612


def change_scale(metadata: Metadata) -> None:
    details(metadata)["inputs"][0]["scale"] = 0.25


def change_zero_point(metadata: Metadata) -> None:
    details(metadata)["inputs"][0]["zero_point"] = -3


def change_dtype(metadata: Metadata) -> None:
    details(metadata)["inputs"][0]["dtype"] = "uint8"
    metadata["modules"]["net"]["memory"]["functions"]["main"][0]["inputs"]["image"]["dtype"] = "uint8"


def transpose(metadata: Metadata) -> None:
    details(metadata)["inputs"][0]["shape"] = [16, 4]


def squeeze(metadata: Metadata) -> None:
    details(metadata)["outputs"][0]["shape"] = [4]


def change_target(metadata: Metadata) -> None:
    metadata["modules"]["net"]["target"] = ["c -mcpu=cortex-m4"]


def change_source(metadata: Metadata) -> None:
    details(metadata)["source"]["sha256"] = "f" * 64


def change_build(metadata: Metadata) -> None:
    details(metadata)["build"]["optimize"] = "size"


def change_parameters(metadata: Metadata) -> None:
    details(metadata)["parameters"] = 12345


def change_time(metadata: Metadata) -> None:
    metadata["modules"]["net"]["export_datetime"] = "2026-11-20 00:00:00Z"


def change_writer(metadata: Metadata) -> None:
    metadata["mlfc"]["version"] = "0.1"


CHANGES: dict[Callable[[Metadata], None], tuple[str, bool]] = {
    rename_node: ("operators", False),
    change_macs: ("operators", False),
    drop_operator: ("operators", False),
    change_weights: ("weights", False),
    rename_weights: ("weights", False),
    drop_weights: ("weights", False),
    grow_constants: ("memory", False),
    change_scale: ("interface", False),
    change_zero_point: ("interface", False),
    change_dtype: ("interface", True),
    transpose: ("interface", True),
    squeeze: ("interface", False),
    change_target: ("facts", False),
    change_source: ("facts", False),
    change_build: ("facts", False),
    change_parameters: ("facts", False),
    change_time: ("facts", False),
}
GROUPS = ("interface", "memory", "operators", "weights", "facts")


def changed_groups(module: Metadata) -> list[str]:
    def holds(value: Any) -> bool:
        return any(map(holds, value.values())) if isinstance(value, dict) else value not in ([], None)

    return [group for group in GROUPS if holds(module[group])]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_each_single_change_is_found_where_it_belongs_and_nowhere_else(
    tmp_path: Path, change: Callable[[Metadata], None]
) -> None:
    metadata = document()
    change(metadata)
    found = mlfc.diff(write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata))
    group, breaks = CHANGES[change]
    assert changed_groups(found["modules"]["net"]) == [group]
    assert (found["equal"], found["breaks"]) == (False, breaks)


def test_what_is_found_has_names_and_both_values(tmp_path: Path) -> None:
    metadata = document()
    for change in (change_macs, rename_node, change_weights, grow_constants, change_scale, change_source):
        change(metadata)
    module = mlfc.diff(write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata))["modules"]["net"]
    assert module["operators"]["changed"] == [{"name": "dense_1", "macs": [512, 1024]}]
    assert [item["name"] for item in module["operators"]["removed"]] == ["conv_1, relu_1"]
    assert [item["name"] for item in module["operators"]["added"]] == ["conv_1, relu6"]
    assert [(a["sha256"][0], b["sha256"][0]) for a, b in module["weights"]["changed"]] == [("2", "3")]
    assert module["memory"] == {"constants_bytes": [608, 612]}
    assert module["interface"] == [{"level": "warning", "what": "input 'image': scale", "a": 0.5, "b": 0.25}]
    assert module["facts"] == {"source sha256": ["0" * 64, "f" * 64]}


def test_renamed_weights_of_equal_content_are_no_change_of_weights(tmp_path: Path) -> None:
    metadata = document()
    rename_weights(metadata)
    found = mlfc.diff(write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata))
    weights = found["modules"]["net"]["weights"]
    assert weights == {"removed": [], "added": [], "changed": [], "renamed": [["weights", "kernel"]]}


def test_facts_of_the_archive_and_of_its_files(tmp_path: Path) -> None:
    metadata = document()
    change_writer(metadata)
    files = {CODE_PATH: CODE + "/* more */\n", "notes.txt": ""}
    found = mlfc.diff(write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata, files))
    assert found["facts"] == {"writer": ["mlfc 0.0", "mlfc 0.1"]}
    assert found["files"] == {"removed": [], "added": ["notes.txt"], "changed": [CODE_PATH, "metadata.json"]}
    assert not found["breaks"]
    assert changed_groups(found["modules"]["net"]) == []


def test_an_archive_differs_in_nothing_from_itself(tmp_path: Path, shared: Path) -> None:
    archives = [write_archive(tmp_path / "net.tar"), *sorted((shared / FIXTURES).glob("*.tar.xz"))]
    assert len(archives) == 4
    for path in archives:
        found = mlfc.diff(path, path)
        assert found["equal"]
        assert not found["breaks"]
        assert not any(changed_groups(module) for module in found["modules"].values())


def shrink_pool(text: str) -> str:
    return text.replace(" 224", " 200")


def grow_pool(text: str) -> str:
    return text.replace(" 224", " 256")


@pytest.mark.parametrize(("change", "level"), [(grow_pool, "break"), (shrink_pool, "note")])
def test_memory_that_the_caller_gives_may_be_too_large_but_not_too_small(
    tmp_path: Path, change: Callable[[str], str], level: str
) -> None:
    after = write_archive(tmp_path / "b.tar", files={HEADER_PATH: change(HEADER)})
    module = mlfc.diff(write_archive(tmp_path / "a.tar"), after)["modules"]["net"]
    pool = "TVMGEN_NET_GLOBAL_WORKSPACE_WORKSPACE_POOL_SIZE"
    assert {item["what"]: item["level"] for item in module["interface"]} == {
        pool: level,
        "TVMGEN_NET_WORKSPACE_SIZE": "note",
    }


def test_code_that_needs_a_runtime_breaks_callers_that_link_none(tmp_path: Path) -> None:
    code = CODE.replace("return 0", "return TVMBackendFreeWorkspace(1, 0, TVMBackendAllocWorkspace(1, 0, 8, 0, 8))")
    plain, needy = write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", files={CODE_PATH: code})
    (change,) = mlfc.diff(plain, needy)["modules"]["net"]["interface"]
    assert change["level"] == "break"
    assert (change["a"], change["b"]) == (None, "TVMBackendAllocWorkspace, TVMBackendFreeWorkspace")
    assert not mlfc.diff(needy, plain)["breaks"]


def test_code_that_needs_more_of_a_runtime_that_is_linked_breaks_nobody(tmp_path: Path) -> None:
    some = CODE.replace("return 0", "return TVMBackendFreeWorkspace(1, 0, 0)")
    more = some.replace("1, 0, 0", "1, 0, TVMBackendAllocWorkspace(1, 0, 8, 0, 8)")
    a, b = (
        write_archive(tmp_path / f"{index}.tar", files={CODE_PATH: code}) for index, code in enumerate((some, more))
    )
    (change,) = mlfc.diff(a, b)["modules"]["net"]["interface"]
    assert (change["level"], change["b"]) == ("note", "TVMBackendAllocWorkspace")


def test_weights_of_graphs_are_known_by_the_names_behind_the_numbers(tmp_path: Path) -> None:
    metadata = document()
    for index, item in enumerate(details(metadata)["constants"]):
        item.update(source=item["name"], name=f"p{index}")
    found = mlfc.diff(write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata))
    assert not any(found["modules"]["net"]["weights"].values())
    details(metadata)["constants"][1]["sha256"] = "9" * 64
    found = mlfc.diff(tmp_path / "a.tar", write_archive(tmp_path / "c.tar", metadata))
    assert [pair[0]["name"] for pair in found["modules"]["net"]["weights"]["changed"]] == ["weights"]


def test_modules_pair_up_by_name_or_as_told(tmp_path: Path) -> None:
    metadata = document()
    metadata["modules"]["other"] = {**metadata["modules"].pop("net"), "model_name": "other"}
    header = HEADER.replace("tvmgen_net", "tvmgen_other").replace("TVMGEN_NET", "TVMGEN_OTHER")
    files = {"codegen/host/include/tvmgen_other.h": header, "codegen/host/src/other_lib0.c": CODE}
    a, b = write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata, files)
    found = mlfc.diff(a, b)
    assert (found["modules_removed"], found["modules_added"], found["breaks"]) == (["net"], ["other"], True)
    mapped = mlfc.diff(a, b, modules={"net": "other"})
    assert [change["what"] for change in mapped["modules"]["net"]["interface"]] == ["the prefix of every symbol"]
    assert mapped["breaks"]
    for pairs in ({"x": "other"}, {"net": "net"}):
        with pytest.raises(OptionError, match="unknown module"):
            mlfc.diff(a, b, modules=pairs)


def test_firmware_for_tvms_archive_takes_ours_instead(shared: Path, models: Path, tmp_path: Path) -> None:
    mod, params = mlfc.import_model(models / "kws_ref_model.tflite")
    ours = mlfc.export_model_library_format(mlfc.build(mod, params=params, module_name="kws"), tmp_path / "k.tar")
    theirs = shared / FIXTURES / "kws_aot_c.tar.xz"
    found = mlfc.diff(theirs, ours)
    assert not found["breaks"]
    (change,) = found["modules"]["kws"]["interface"]
    assert (change["level"], change["what"], change["a"]) == ("note", "TVMGEN_KWS_WORKSPACE_SIZE", "105360")
    assert found["modules"]["kws"]["memory"]["workspace_bytes"] == [105360, int(change["b"])]
    assert found["modules"]["kws"]["facts"]["target"] == [["c -keys=cpu"], ["c"]]
    assert found["facts"]["writer"][0] == "TVM 0.14.0"


def test_a_graph_module_is_no_replacement_for_a_c_interface(shared: Path) -> None:
    folder = shared / FIXTURES
    found = mlfc.diff(folder / "kws_aot_c.tar.xz", folder / "kws_graph_c.tar.xz")["modules"]["kws"]
    words = [change["what"] for change in found["interface"] if change["level"] == "break"]
    assert words[:2] == ["the executor that runs the module", "the C interface (the header) is gone"]
    # TVM's metadata of both describe the same inputs and outputs
    assert not any("put '" in word for word in words)


def test_a_module_more_breaks_nobody(shared: Path) -> None:
    folder = shared / FIXTURES
    one, two = folder / "kws_aot_c.tar.xz", folder / "multi.tar.xz"
    assert mlfc.diff(one, two)["modules_added"] == ["ad"]
    assert not mlfc.diff(one, two)["breaks"]
    assert mlfc.diff(two, one)["breaks"]


def test_the_command_says_it_by_its_exit_status(tmp_path: Path) -> None:
    metadata = document()
    change_dtype(metadata)
    a, b = write_archive(tmp_path / "a.tar"), write_archive(tmp_path / "b.tar", metadata)
    same = program("diff", a, a, cwd=tmp_path)
    assert (same.returncode, same.stdout) == (0, "nothing changed\n")
    other = program("diff", a, b, cwd=tmp_path)
    assert (other.returncode, other.stderr) == (1, "")
    assert "input 'image': dtype  int8  uint8" in other.stdout
    wrong = program("diff", a, b, "--module", "net", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "expected A:B, got 'net'" in wrong.stderr


def test_a_plan_beyond_the_calls_is_refused(tmp_path: Path) -> None:
    metadata = document()
    details(metadata)["plan"][0]["last"] = 3
    with pytest.raises(ArchiveError, match="plan"):
        mlfc.inspect(write_archive(tmp_path / "a.tar", metadata))


def test_what_modules_share_counts_once(tmp_path: Path) -> None:
    apart = document()
    apart["modules"]["twin"] = {**apart["modules"]["net"], "model_name": "twin"}
    shared = {**apart, "mlfc": dict(apart["mlfc"])}
    shared["mlfc"]["shared"] = {
        "workspace_bytes": 224,
        "workspace_modules": ["net", "twin"],
        "constants_bytes": 608,
        "functions": ["tvmgen_net_conv"],
    }
    found = mlfc.diff(write_archive(tmp_path / "a.tar", apart), write_archive(tmp_path / "b.tar", shared))
    assert found["totals"] == {"ram_bytes": [2 * (224 + 96), 224 + 2 * 96], "constants_bytes": [2 * 608, 608]}
    assert found["modules"]["net"]["interface"] == [
        {"level": "warning", "what": "may not run at the same time as", "a": None, "b": "twin"}
    ]
    text = succeeded("inspect", tmp_path / "b.tar", cwd=tmp_path)
    assert "workspace of net, twin    224" in text
    assert "constants                 608" in text


def test_a_budget_is_asked_of_the_second(tmp_path: Path) -> None:
    a = write_archive(tmp_path / "a.tar")
    wanted = mlfc.diff(a, a, ram=1, flash=1)["budget"]
    (ram, _), (flash, _) = wanted["ram_bytes"], wanted["constants_bytes"]
    assert ram > 1
    assert flash > 1
    within = program("diff", a, a, "--ram", str(ram), "--flash", str(flash), cwd=tmp_path)
    assert (within.returncode, within.stdout) == (0, "nothing changed\n")
    over = program("diff", a, a, "--ram", str(ram - 1), "--flash", "1M", cwd=tmp_path)
    assert over.returncode == 1
    lines = [line.split()[1:] for line in over.stdout.splitlines()]
    assert ["RAM", f"{ram:,}", f"{ram:,}", f"{ram - 1:,}", "1"] in lines
    mlfc.compile(DIGITS).export(tmp_path / "release.tar")
    assert "nothing changed" in succeeded("diff", "release.tar", DIGITS, cwd=tmp_path)


def test_the_action_shows_what_changed_and_fails_beyond_the_budget(tmp_path: Path, models: Path) -> None:
    """Run the script of action.yml in a repository whose last commit has another model."""
    checkout = Path(mlfc.__file__).resolve().parents[2]
    steps = yaml.safe_load((checkout / "action.yml").read_text())["runs"]["steps"]
    assert all("${{" not in step["run"] for step in steps), "text of others is never a part of a script"
    assert steps[1]["run"] == 'bash "$GITHUB_ACTION_PATH/.github/budget.sh"'

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def run(ram: str, growth: str = "") -> tuple[int, str]:
        summary = tmp_path / "summary"
        summary.write_text("")
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        limits = {"RAM": ram, "FLASH": "", "MAX_GROWTH": growth}
        asked = {"MODEL": "m.tflite", "TARGET": "c", "BOARD": "", "BASE": "HEAD", **limits}
        environment = {**os.environ, **asked, "PATH": path, "GITHUB_STEP_SUMMARY": str(summary)}
        script = checkout / ".github" / "budget.sh"
        found = subprocess.run(
            ["bash", script], check=False, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert found.stderr == ""
        assert summary.read_text() == found.stdout
        return found.returncode, found.stdout

    git("init", "-q")
    (tmp_path / "m.tflite").write_bytes((models / "hello_world_int8.tflite").read_bytes())
    git("add", "m.tflite")
    git("commit", "-qm", "before")
    (tmp_path / "m.tflite").write_bytes((models / "ad01_int8.tflite").read_bytes())
    status, text = run("1M")
    assert status == 0
    assert "whole archive: bytes" in text
    status, text = run("100", "ram=1M flash=4k")
    assert status == 1
    assert re.search(r"m\.tflite +RAM +[\d,]+ +[\d,]+ +100 +[1-9]", text)
    assert re.search(r"m\.tflite +constants +[\d,]+ +271,936 +[\d,]+ +[1-9]", text)
