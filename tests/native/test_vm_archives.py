"""Archives of dynamic models: written, checked, compared, and run as C without a heap."""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc import archive
from mlfc.archive.write.budget import check_budget
from mlfc.errors import ArchiveError, BudgetError, OptionError
from mlfc.factory import Factory
from mlfc.support.dim_estimates import most, most_work
from mlfc.support.executable import decode, encode
from tests.native.extracted import WARNINGS, extracted, make, sum_factory
from tests.open_models import looping
from tests.unit.test_archive import rewritten
from tests.vm_models import expected, two_layers

pytestmark = pytest.mark.usefixtures("quick_builds")

DESCRIPTION = "executor-config/vm/net.vm"


def built(high: int | None = 4, target: str = "c", name: str = "net") -> Factory:
    module, params = two_layers() if high is None else two_layers(high)
    return mlfc.build(module, target, params, executor="vm", module_name=name)


def exported(factory: Factory, folder: Path, name: str = "net.tar") -> Path:
    path: Path = mlfc.export_model_library_format(factory, folder / name)
    return path


def members(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as tar:
        return {
            info.name.removeprefix("./"): tar.extractfile(info).read()  # type: ignore[union-attr]
            for info in tar
            if info.isreg()
        }


@pytest.mark.parametrize("high", [1 << 24, 1_000_000_000])
def test_bound_too_large_for_memory_is_none(high: int, tmp_path: Path) -> None:
    path = exported(built(high), tmp_path)
    assert archive.validate(path) == []
    main = json.loads(members(path)["metadata.json"])["modules"]["net"]["memory"]["functions"]["main"][0]
    assert main["inputs"]["x"]["size"] == 0


def test_work_without_a_practical_bound_counts_once(tmp_path: Path) -> None:
    path = exported(built(1_000_000_000), tmp_path)
    operators = json.loads(members(path)["metadata.json"])["modules"]["net"]["mlfc"]["operators"]
    assert 0 < max(call["macs"] for call in operators) < 1000
    side = mlfc.Dim("side", 1, 1 << 20)
    # metadata hold integers that JSON readers keep exactly
    assert (most(side * side * side), most_work(side * side * side)) == (None, (1 << 53) - 1)


@pytest.mark.parametrize(("high", "target"), [(4, "c"), (None, "c"), (4, "llvm"), (None, "llvm")])
def test_archive_describes_its_model(high: int | None, target: str, tmp_path: Path) -> None:
    factory = built(high, target)
    path = exported(factory, tmp_path)
    assert archive.validate(path) == []
    files = members(path)
    executable = decode(files[DESCRIPTION], DESCRIPTION)
    assert encode(executable) == files[DESCRIPTION]
    module = json.loads(files["metadata.json"])["modules"]["net"]
    assert module["executors"] == ["vm"]
    assert module["mlfc"]["vm"]["symbols"] == [{"name": "batch", "low": 1, "high": high}]
    main = module["memory"]["functions"]["main"][0]
    assert main["inputs"] == {"x": {"dtype": "float32", "size": 8 * 4 * (high or 0)}}
    assert main["outputs"] == {"probabilities": {"dtype": "float32", "size": 4 * 4 * (high or 0)}}
    assert module["mlfc"]["outputs"][0]["shape"] == ["batch", 4]
    assert ("Makefile" in files) is (high is not None)
    readme = files["README.md"].decode()
    assert ("--shape x=batch:1..8,8" in readme) is (high is None)
    found = archive.inspect(path)["modules"]["net"]
    assert found["executor"] == "vm"
    assert (found["memory"]["workspace_bytes"] is None) is (high is None)
    again = tmp_path / "again.tar"
    archive.migrate(path, again)
    assert again.read_bytes() == path.read_bytes()
    (rebuilt,) = archive.rebuild(path)
    assert exported(rebuilt, tmp_path, "rebuilt.tar").read_bytes() == path.read_bytes()


def test_metadata_have_what_is_live_in_each_call(tmp_path: Path) -> None:
    """Use four rows: the first layer returns 16 numbers per row, the second 4, and the softmax 4."""
    path = exported(built(4), tmp_path)
    found = archive.inspect(path)["modules"]["net"]
    sizes = [4 * 16 * 4, 4 * 4 * 4, 4 * 4 * 4]
    scratch = [call["workspace_bytes"] for call in found["operators"]]
    live = [call["live_bytes"] for call in found["operators"]]
    assert live == [sizes[0] + scratch[0], sizes[0] + sizes[1] + scratch[1], sizes[1] + sizes[2] + scratch[2]]
    assert found["peak"]["live_bytes"] == max(live) == found["memory"]["workspace_lower_bound_bytes"]
    assert found["peak"]["call"] == live.index(max(live))
    assert sorted(item["bytes"] for item in found["peak"]["tensors"]) == sorted([sizes[0], sizes[1]])
    files = members(path)
    module = json.loads(files["metadata.json"])["modules"]["net"]["mlfc"]
    executable = decode(files[DESCRIPTION], DESCRIPTION)
    assert max(block["offset"] + block["bytes"] for block in module["plan"]) == executable.arena_bytes
    assert "which tensors live when" not in str(archive.inspect(path)["modules"]["net"]["untold"])
    assert mlfc.memory_map(path).svg().count("<rect") > len(sizes)
    unbounded = archive.inspect(exported(built(None), tmp_path, "unbounded.tar"))["modules"]["net"]
    assert {call["live_bytes"] for call in unbounded["operators"]} == {None}
    assert unbounded["peak"] is None


def test_a_loop_carries_its_values_through_all_calls_of_a_turn(tmp_path: Path) -> None:
    module, params = mlfc.import_model(looping(), shapes={"x": (mlfc.Dim("batch", 1, 4), 4)})
    path = exported(mlfc.build(module, "c", params, module_name="net"), tmp_path)
    assert archive.validate(path) == []
    told = json.loads(members(path)["metadata.json"])["modules"]["net"]["mlfc"]
    calls = len(told["operators"])
    carried = next(block for block in told["plan"] if block["bytes"] == 64 and block["last"] == calls - 1)
    assert carried["first"] <= 1
    # overlapping blocks are a fault
    wrong = {**told, "plan": [{**block, "offset": 0} for block in told["plan"]]}
    document = json.loads(members(path)["metadata.json"])
    document["modules"]["net"]["mlfc"] = wrong
    changed = rewritten(path, {"metadata.json": json.dumps(document).encode()}, tmp_path / "wrong.tar")
    assert any("while both are live" in problem for problem in archive.validate(changed))


def test_archive_of_llvm_code_runs_any_batch(tmp_path: Path) -> None:
    _, params = two_layers()
    model = mlfc.load(exported(built(None, "llvm"), tmp_path))
    for rows in (1, 5):
        x = np.random.default_rng(rows).uniform(-1, 1, (rows, 8)).astype(np.float32)
        np.testing.assert_allclose(model.run({"x": x})["probabilities"], expected(x, params), rtol=2e-6)


def test_c_runs_in_one_static_array(tmp_path: Path) -> None:
    """Build an archive with a module of each executor without warnings, and run the dynamic one with two shapes."""
    _, params = two_layers()
    given = {"x": ((2,), "float32")}
    others = [sum_factory(name, given, "y", executor=name) for name in ("aot", "graph")]
    folder = extracted([built(), built(name="twin"), *others], tmp_path)
    said = make(folder, "test", f"CFLAGS={WARNINGS}")
    lines = [line for line in said.splitlines() if line.startswith("net, zeros, probabilities")]
    row = expected(np.zeros((1, 8)), params)[0]
    assert len(lines) == 2
    for line, count in zip(lines, (4, 16), strict=True):
        shown = [float(text) for text in re.findall(r"[0-9]\.[0-9e-]+", line.partition("checksum")[0])]
        assert len(shown) == min(count, 8)
        np.testing.assert_allclose(shown, np.tile(row, 2)[: len(shown)], rtol=1e-5)
    assert archive.validate(tmp_path / "archive.tar") == []
    for source in sorted((folder / "codegen/host/src").glob("net_lib*.c")):
        assert "malloc" not in source.read_text()


def test_c_gives_what_its_test_vectors_say(tmp_path: Path, quick_builds: None) -> None:
    folder = extracted(built(), tmp_path, test_vectors=3)
    assert archive.validate(tmp_path / "archive.tar") == []
    said = make(folder, "test", f"CFLAGS={WARNINGS}")
    assert len(re.findall("PASS", said)) >= 3
    vectors = (folder / "demo/net_vectors.c").read_text()
    assert re.findall(r"\.extents = \{\s*\{(\d+), 8\},\s*\{(\d+), 4\},", vectors)[:2] == [("1", "1"), ("4", "4")]


def test_objects_and_sources_have_what_a_program_needs() -> None:
    code = set(archive.source_folder([built()]))
    assert {"src/net_lib1.c", "include/tvmgen_net.h", "runtime/include/mlfc_vm.h", DESCRIPTION} <= code
    assert {"include/tvmgen_net.h", "lib/net_lib1.o", DESCRIPTION} <= set(archive.object_files([built(4, "llvm")]))


def test_bounds_are_part_of_the_interface(tmp_path: Path) -> None:
    narrow, wide = (exported(built(high), tmp_path, f"{high}.tar") for high in (4, 8))
    wider, narrower = (archive.diff(*pair)["modules"]["net"]["interface"] for pair in ((narrow, wide), (wide, narrow)))
    levels = [{item["what"]: item["level"] for item in changes} for changes in (wider, narrower)]
    assert [level["bounds of 'batch'"] for level in levels] == ["note", "break"]
    # the array of a caller compiled with the old header becomes too small, or stays large enough
    assert [level["TVMGEN_NET_VM_WORK_SIZE"] for level in levels] == ["break", "note"]
    assert [level["TVMGEN_NET_X_SIZE"] for level in levels] == ["note", "break"]


def test_budget_counts_the_work_area() -> None:
    factory = built()
    vm = factory.interface().vm
    assert vm is not None
    assert vm.work_bytes is not None
    needed = vm.work_bytes + 4 * 8 * 4
    check_budget([factory], ram=needed)
    with pytest.raises(BudgetError, match=f"exceed the budget.*work area {vm.work_bytes:,}"):
        check_budget([factory], ram=needed - 1)
    check_budget([built(None)], flash=10_000)
    with pytest.raises(OptionError, match=r"requires bounds.*batch.*--shape x=batch:1\.\.8,8"):
        check_budget([built(None)], ram=1 << 30)


@pytest.mark.parametrize("options", [{"format_version": 6}, {"rfc": True}, {"test_vectors": 1}])
def test_what_archives_of_the_virtual_machine_cannot_have(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"older versions|without a bound"):
        mlfc.export_model_library_format(built(None), tmp_path / "x.tar", **options)
    assert list(tmp_path.iterdir()) == []


def test_loading_refuses_the_description_of_another_module(tmp_path: Path) -> None:
    path, other = exported(built(), tmp_path), built(None).unit.executable
    assert other is not None
    files = {**members(path), DESCRIPTION: encode(other)}
    document = json.loads(files["metadata.json"])
    del document["mlfc"]  # remove the list of files, which contains their hashes
    files["metadata.json"] = json.dumps(document).encode()
    spoilt = tmp_path / "spoilt.tar"
    with tarfile.open(spoilt, "w") as tar:
        for name, data in files.items():
            (tmp_path / "member").write_bytes(data)
            tar.add(tmp_path / "member", f"./{name}")
    with pytest.raises(ArchiveError, match=r"net\.vm.*size of its arena is unbounded|net\.vm.*in the metadata"):
        mlfc.load(spoilt)
    assert len(archive.validate(spoilt)) >= 3


def test_interface_of_a_bounded_model_names_its_work_area() -> None:
    factory = built()
    assert factory.interface().vm == built(4, "llvm").interface().vm


@pytest.mark.parametrize(
    "options", [{"executor": "aot"}, {"executor": "graph"}, {"executor": "graph", "target": "opencl"}]
)
def test_open_dimensions_need_the_virtual_machine(options: dict[str, str]) -> None:
    module, params = two_layers(4)
    with pytest.raises(OptionError, match=r"require the virtual machine.*--shape INPUT=1"):
        mlfc.build(module, params=params, **options)
    with pytest.raises(OptionError, match=r"memory options require the AOT executor, got 'vm'"):
        mlfc.build(module, params=params, workspace_io=True)
