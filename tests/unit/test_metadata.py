"""The facts in metadata, against the code, the graph JSON and the parameters that they describe."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
import mlfc.ops
from mlfc.archive.write.budget import check_budget
from mlfc.archive.write.members import check_tree, import_tree
from mlfc.archive.write.options import ExportOptions
from mlfc.errors import BudgetError, OptionError
from mlfc.factory import Factory
from mlfc.relay import ir
from mlfc.runtime.modules.module import Module, OpaqueModule
from mlfc.support.params import load_params

MODELS = ("kws_ref_model", "ad01_int8", "hello_world_int8")


def imported(models: Path, model: str, name: str, **options: Any) -> Factory:
    module, params = mlfc.import_model(models / f"{model}.tflite")
    return mlfc.build(module, params=params, module_name=name, **options)


def exported(
    factories: Factory | Sequence[Factory], path: Path, **options: Any
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Export, and read the archive with the standard library alone: its metadata and its files."""
    mlfc.export_model_library_format(factories, path, **options)
    with tarfile.open(path, "r:") as tar:
        files = {
            info.name.removeprefix("./"): tar.extractfile(info).read()  # type: ignore[union-attr]
            for info in tar
            if info.isfile()
        }
    return json.loads(files["metadata.json"]), files


@pytest.fixture(scope="module", params=MODELS)
def details(request: pytest.FixtureRequest, models: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    factory = imported(models, request.param, "model")
    document, _ = exported(factory, tmp_path_factory.mktemp("facts") / "a.tar", runtime=False)
    found: dict[str, Any] = document["modules"]["model"]["mlfc"]
    return found


def chained(plan: list[dict[str, Any]], block: int) -> set[int]:
    """Return the blocks whose storage this block reuses, directly or indirectly."""
    chain = set()
    reused = plan[block]["reuses"]
    while reused is not None:
        chain.add(reused)
        reused = plan[reused]["reuses"]
    return chain


def test_blocks_that_live_at_once_lie_apart(details: dict[str, Any]) -> None:
    plan = details["plan"]
    assert max(block["offset"] + block["bytes"] for block in plan) == details["memory"]["workspace_bytes"]
    for later, block in enumerate(plan):
        for earlier, other in enumerate(plan[:later]):
            if block["first"] <= other["last"] and other["first"] <= block["last"]:
                apart = (
                    block["offset"] + block["bytes"] <= other["offset"]
                    or other["offset"] + other["bytes"] <= block["offset"]
                )
                assert apart or earlier in chained(plan, later), (block, other)


def test_a_block_that_takes_a_place_begins_where_the_other_ends(details: dict[str, Any]) -> None:
    plan = details["plan"]
    for block in plan:
        if block["reuses"] is not None:
            other = plan[block["reuses"]]
            assert (other["offset"], other["last"]) == (block["offset"], block["first"])


def test_live_bytes_are_those_of_the_plan(details: dict[str, Any]) -> None:
    plan = details["plan"]
    for index, operator in enumerate(details["operators"]):
        owners = np.zeros(details["memory"]["workspace_bytes"], bool)
        for block in plan:
            if block["first"] <= index <= block["last"]:
                owners[block["offset"] : block["offset"] + block["bytes"]] = True
        assert operator["live_bytes"] == owners.sum()
    assert details["peak"]["live_bytes"] == max(operator["live_bytes"] for operator in details["operators"])


def test_bytes_of_operators_are_those_of_their_tensors(models: Path, tmp_path: Path) -> None:
    rows, columns = 3, 4
    x = ir.Var("x", ir.TensorType((2, columns), "float32"))
    weights = ir.Var("w", ir.TensorType((rows, columns), "float32"))
    body = ir.call("nn.dense", [x, weights], units=rows)
    module = ir.IRModule({"main": ir.Function((x, weights), body)}, ("y",), {}, {"format": "test"})
    factory = mlfc.build(module, params={"w": np.ones((rows, columns), np.float32)})
    document, _ = exported(factory, tmp_path / "a.tar")
    (operator,) = document["modules"]["default"]["mlfc"]["operators"]
    constants = document["modules"]["default"]["mlfc"]["constants"]
    assert operator["bytes"] == 4 * (2 * columns + 2 * rows) + sum(item["bytes"] for item in constants)
    assert operator["macs"] == 2 * rows * columns


@pytest.fixture(scope="module")
def graph(models: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, bytes]]:
    factory = imported(models, "kws_ref_model", "kws", executor="graph")
    document, files = exported(factory, tmp_path_factory.mktemp("graph") / "kws.tar")
    return document["modules"]["kws"], files


def test_storages_are_right_by_entry(graph: tuple[dict[str, Any], dict[str, bytes]]) -> None:
    module, files = graph
    config = json.loads(files["executor-config/graph/kws.graph"])
    attrs = {key: value[1] for key, value in config["attrs"].items()}
    needed: dict[int, int] = {}
    for storage, shape, dtype in zip(attrs["storage_id"], attrs["shape"], attrs["dltype"], strict=True):
        needed[storage] = max(needed.get(storage, 0), int(np.prod(shape)) * np.dtype(dtype).itemsize)
    bindings = {attrs["storage_id"][node]: config["nodes"][node]["name"] for node in config["arg_nodes"]}
    sids = module["memory"]["sids"]
    assert {item["storage_id"]: item["size_bytes"] for item in sids} == needed
    assert {item["storage_id"]: item["input_binding"] for item in sids if "input_binding" in item} == bindings
    assert module["executors"] == ["graph"]
    assert module["mlfc"]["entry"] is None
    assert module["mlfc"]["plan"] is None


def test_constants_of_graphs_are_those_of_the_file(graph: tuple[dict[str, Any], dict[str, bytes]]) -> None:
    module, files = graph
    params = load_params(files["parameters/kws.params"])
    constants = module["mlfc"]["constants"]
    assert [item["name"] for item in constants] == [f"p{index}" for index in range(len(params))]
    for item in constants:
        array = params[item["name"]]
        assert (list(array.shape), str(array.dtype), array.nbytes) == (item["shape"], item["dtype"], item["bytes"])
        assert hashlib.sha256(array.tobytes()).hexdigest() == item["sha256"]
        assert item["source"]
    (main,) = module["memory"]["functions"]["main"]
    assert main["constants_size_bytes"] == sum(array.nbytes for array in params.values())
    assert main["io_size_bytes"] == 490 + 12


def test_constants_of_code_are_listed_once_each(details: dict[str, Any]) -> None:
    constants = details["constants"]
    assert sum(item["bytes"] for item in constants) == details["memory"]["constants_bytes"]
    assert len({(item["dtype"], item["sha256"]) for item in constants}) == len(constants)


def test_a_build_is_recorded(models: Path, tmp_path: Path) -> None:
    target = "c -mcpu=cortex-m4"
    factory = imported(models, "hello_world_int8", "hello", target=target, optimize="size")
    document, _ = exported(factory, tmp_path / "a.tar", test_vectors=1, seed=5)
    module = document["modules"]["hello"]
    assert module["mlfc"]["build"] == {
        "target": target, "executor": "aot", "optimize": "size", "numerics": "litert", "external_workspace": False,
        "toolchain": None, "test_vectors": 1, "seed": 5,
    }  # fmt: skip
    digest = hashlib.sha256((models / "hello_world_int8.tflite").read_bytes()).hexdigest()
    assert module["mlfc"]["source"]["sha256"] == digest
    (runtime,) = module["external_dependencies"]
    assert runtime == {
        "short_name": "tvm_standalone_crt", "url": "./runtime", "url_type": "mlf_path",
        "version_spec": mlfc.__version__,
    }  # fmt: skip


def test_without_runtime_nothing_speaks_of_it(models: Path, tmp_path: Path) -> None:
    factory = imported(models, "hello_world_int8", "hello")
    document, files = exported(factory, tmp_path / "a.tar", options=ExportOptions(runtime=False, source_params=False))
    assert "external_dependencies" not in document["modules"]["hello"]
    assert not [path for path in files if path.startswith(("runtime", "templates", "src/hello.params"))]
    assert b"SPDX-License-Identifier: 0BSD" in files["README.md"]
    graph = imported(models, "hello_world_int8", "hello", executor="graph")
    _, files = exported(graph, tmp_path / "b.tar", runtime=False)
    assert not [path for path in files if path.startswith(("demo", "Makefile", "CMake"))]
    with pytest.raises(OptionError, match="needs the C runtime"):
        mlfc.export_model_library_format(graph, tmp_path / "c.tar", runtime=False, test_vectors=1)


def test_what_modules_share_is_said(models: Path, tmp_path: Path) -> None:
    factories = [imported(models, "kws_ref_model", name) for name in ("a", "b")]
    document, files = exported(factories, tmp_path / "a.tar", share_workspace=True, share_weights=True)
    shared = document["mlfc"]["shared"]
    sizes = document["modules"]["a"]["mlfc"]["memory"]
    assert shared["workspace_modules"] == ["a", "b"]
    assert shared["workspace_bytes"] == sizes["workspace_bytes"]
    assert shared["constants_bytes"] == sizes["constants_bytes"]
    code = b"".join(data for path, data in files.items() if path.startswith("codegen/host/src/mlfc_shared_lib"))
    assert shared["functions"]
    assert all(name.encode() in code for name in shared["functions"])
    used = {operator["function"] for operator in document["modules"]["b"]["mlfc"]["operators"]}
    assert used <= set(shared["functions"])
    apart, _ = exported(factories, tmp_path / "b.tar")
    assert apart["mlfc"]["shared"]["workspace_bytes"] == apart["mlfc"]["shared"]["constants_bytes"] == 0


def test_budgets_count_shared_memory_once(models: Path) -> None:
    factories = [imported(models, "kws_ref_model", name) for name in ("a", "b")]
    sizes = factories[0].code.sizes
    ram, flash = sizes.workspace + 2 * sizes.io, sizes.constants
    check_budget(factories, ram=ram, flash=flash, options=ExportOptions(share_workspace=True, share_weights=True))
    with pytest.raises(BudgetError, match=f"one workspace of {sizes.workspace:,} for 2 modules"):
        check_budget(factories, ram=ram - 1, options=ExportOptions(share_workspace=True))
    check_budget(factories, ram=2 * (sizes.workspace + sizes.io), flash=2 * flash)
    for limits in ({"ram": ram}, {"flash": flash}):
        with pytest.raises(BudgetError, match="exceed the budget"):
            check_budget(factories, **limits)


def test_budgets_of_graphs_count_their_storages(models: Path) -> None:
    factory = imported(models, "kws_ref_model", "kws", executor="graph")
    scratch = max(kernel.scratch_bytes for kernel in factory.program.kernels)
    needed = scratch + sum(size for _, size, _ in factory.storages)
    check_budget([factory], ram=needed)
    with pytest.raises(BudgetError, match=r"exceed the budget of .* by 1 bytes.*loaded constants"):
        check_budget([factory], ram=needed - 1)


class Stored(OpaqueModule):
    """A module of a custom kind."""


def with_imports(factory: Factory, *modules: Module) -> Factory:
    for module in modules:
        factory.lib.import_module(module)
    return factory


def test_modules_for_other_devices_are_stored_with_their_tree(models: Path, tmp_path: Path) -> None:
    outer, inner, other = Stored("npu", b"outer", "blob"), Stored("dsp", b"inner"), Stored("npu", b"other", "blob")
    outer.import_module(inner)
    other.import_module(inner)
    factory = with_imports(imported(models, "hello_world_int8", "hello"), outer, other)
    document, files = exported(factory, tmp_path / "a.tar")
    tree = document["modules"]["hello"]["mlfc"]["module_tree"]
    assert tree[0]["type_key"] == "c"
    assert tree[0]["parent"] is None
    assert "codegen/host/src/hello_lib0.c" in tree[0]["files"]
    assert tree[1:] == [
        {"type_key": "npu", "files": ["codegen/npu/hello_mod0.blob"], "parent": 0},
        {"type_key": "dsp", "files": ["codegen/dsp/hello_mod0.bin"], "parent": 1},
        {"type_key": "npu", "files": ["codegen/npu/hello_mod1.blob"], "parent": 0},
        {"type_key": "dsp", "files": ["codegen/dsp/hello_mod0.bin"], "parent": 3},
    ]
    stored = [files[path] for entry in tree[1:] for path in entry["files"]]
    assert stored == [b"outer", b"inner", b"other", b"inner"]


@pytest.mark.parametrize("key", ["host", "../up", "", "a/b", "Con:"])
def test_kinds_that_name_no_folder_are_refused(key: str) -> None:
    with pytest.raises(OptionError, match="not valid names of a folder"):
        import_tree("model", "c", [], [Stored(key, b"x")])


def test_names_that_clash_are_refused() -> None:
    upper, lower = Stored("NPU", b"x"), Stored("npu", b"y")
    with pytest.raises(OptionError, match="both codegen/npu and codegen/NPU"):
        check_tree(import_tree("model", "c", [], [lower, upper]).files)
    with pytest.raises(OptionError, match="clash on some"):
        check_tree(["src/a", "src/A/b"])
    check_tree(["src/a", "src/ab/c", "a/src"])


def test_modules_that_cannot_be_stored_are_refused() -> None:
    with pytest.raises(OptionError, match="cannot be stored"):
        import_tree("model", "c", [], [Module()])


def test_names_are_plain_text_in_the_description(tmp_path: Path) -> None:
    name = "a|b`c\n# [x](http://y) <b>"
    x = ir.Var(name, ir.TensorType((2,), "float32"))
    module = ir.IRModule({"main": ir.Function((x,), ir.call("nn.relu", [x]))}, ("y",), {}, {"format": "test"})
    _, files = exported(mlfc.build(module), tmp_path / "a.tar")
    text = files["README.md"].decode()
    row = next(line for line in text.splitlines() if line.startswith("| input"))
    assert r"a\|b\`c?\# \[x\]\(http://y\) \<b\>" in row


SCRIPT = """
import os, sys
import mlfc
os.umask(int(sys.argv[3], 8))
factories = []
for name, executor in (("b", "aot"), ("a", "graph")):
    module, params = mlfc.import_model(sys.argv[1])
    factories.append(mlfc.build(module, params=params, module_name=name, executor=executor))
mlfc.export_model_library_format(factories, sys.argv[2], share_weights=True)
"""


def test_processes_with_other_hash_seeds_folders_and_masks_write_the_same_bytes(models: Path, tmp_path: Path) -> None:
    written = []
    for seed, mask in (("0", "022"), ("12345", "077")):
        folder = tmp_path / seed
        folder.mkdir()
        environment = {**os.environ, "PYTHONHASHSEED": seed, "SOURCE_DATE_EPOCH": "86400"}
        command = [sys.executable, "-c", SCRIPT, str(models / "hello_world_int8.tflite"), "out.tar", mask]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        written.append((folder / "out.tar").read_bytes())
    assert written[0] == written[1]
    assert b"1970-01-02 00:00:00Z" in written[0]
