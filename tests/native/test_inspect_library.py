"""Information that is read from a library's file without loading it."""

from __future__ import annotations

import json
import random
import re
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

import mlfc
from mlfc.archive.describe.inspect import inspect
from mlfc.archive.describe.inspect_library import inspect_library
from mlfc.errors import ArchiveError, UnsupportedError
from mlfc.factory import Factory, library_root
from mlfc.library.export import export_library
from mlfc.runtime.modules.blob import SYMBOLS
from tests.conftest import need
from tests.native.extracted import imported
from tests.native.foreign_libraries import without_c_library
from tests.vm_models import two_layers

pytestmark = pytest.mark.usefixtures("quick_builds")


@pytest.fixture(scope="module")
def factories(models: Path) -> list[Factory]:
    model = models / "hello_world_int8.tflite"
    return [imported(model, "ahead"), imported(model, "step", executor="graph")]


@pytest.fixture(scope="module")
def library(factories: list[Factory], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_library(library_root(factories), tmp_path_factory.mktemp("inspect") / "both.so")


def test_the_tree_and_the_functions_are_told(library: Path, factories: list[Factory]) -> None:
    found = inspect_library(library)
    tree = found["library"]["trees"]["classic"]
    assert {node["type_key"] for node in tree} >= {
        "mlfc.ModuleSet",
        "AotExecutorFactory",
        "GraphExecutorFactory",
        "_lib",
    }
    # imports have larger indices than their importers, and the library is last
    assert all(child > index for index, node in enumerate(tree) for child in node["imports"])
    graph = next(node for node in tree if node["type_key"] == "GraphExecutorFactory")
    assert graph["bytes"] > sum(array.nbytes for array in factories[1].params.values())
    assert found["library"]["functions"]["c"] == ["tvmgen_ahead_run"]
    assert "tvmgen_ahead___tvm_main__" in found["library"]["functions"]["classic"]
    assert set(factories[1].code.function_names.values()) <= set(found["library"]["functions"]["classic"])
    assert "ahead" in found["library"]["functions"]["ffi"]
    assert {name: item["executor"] for name, item in found["modules"].items()} == {"ahead": "aot", "step": "graph"}


def test_the_size_of_the_blob_is_that_of_its_symbol(library: Path) -> None:
    lines = subprocess.run([need("nm", "binutils"), "-DS", library], capture_output=True, text=True, check=True).stdout
    (size,) = (int(line.split()[1], 16) for line in lines.splitlines() if line.endswith(SYMBOLS["classic"]))
    tree = inspect_library(library)["library"]["trees"]["classic"]
    kinds = sum(8 + len(node["type_key"]) for node in tree)
    bodies = sum(node["bytes"] or 0 for node in tree)
    # the tree follows the modules: its name, and two lists of numbers
    lists = 8 * (1 + len(tree) + 1) + 8 * (1 + sum(len(node["imports"]) for node in tree))
    assert size == 8 + 8 + kinds + bodies + 8 + len("_import_tree") + lists


def test_the_command_shows_it(library: Path, command: Any) -> None:
    text = command("inspect", library)
    assert "GraphExecutorFactory" in text
    assert "tvmgen_ahead___tvm_main__" in text
    assert json.loads(command("inspect", library, "--json")) == inspect_library(library)


@pytest.mark.parametrize("high", [4, None])
def test_open_extents_are_told_with_their_bounds(high: int | None, tmp_path: Path, command: Any) -> None:
    module, params = two_layers() if high is None else two_layers(high)
    factory = mlfc.build(module, "c", params, module_name="net")
    library = export_library(library_root([factory]), tmp_path / "net.so")
    found = inspect_library(library)["modules"]["net"]
    archive = inspect(mlfc.export_model_library_format(factory, tmp_path / "net.tar"))["modules"]["net"]
    assert found["vm"] == archive["vm"]
    assert found["vm"]["symbols"] == [{"name": "batch", "low": 1, "high": high}]
    for key, size in found["memory"].items():
        assert size == archive["memory"][key]
    shown = command("inspect", library)
    assert re.search(r"batch +1 +" + ("no bound" if high is None else "4"), shown)
    assert ("memory is allocated at run time" in shown) is (high is None)


@pytest.mark.parametrize("suffix", [".a", ".tar"])
def test_other_forms_are_told_alike(suffix: str, library: Path, factories: list[Factory], tmp_path: Path) -> None:
    path = export_library(library_root(factories), tmp_path / f"both{suffix}")
    found, shared = inspect_library(path), inspect_library(library)
    assert found["modules"] == shared["modules"]
    assert {**found["library"], "form": None} == {**shared["library"], "form": None}


@pytest.fixture(scope="module")
def elsewhere(factories: list[Factory], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return libraries for other systems by file name."""
    folder = tmp_path_factory.mktemp("elsewhere")
    files = {
        "windows.dll": "x86_64-windows-gnu",
        "windows.a": "x86_64-windows-gnu",
        "macos.dylib": "aarch64-macos",
        "macos.tar": "aarch64-macos",
        "module.wasm": "wasm32-wasi",
        "module.a": "wasm32-wasi",
    }
    root = library_root(factories)
    with without_c_library():
        return {name: export_library(root, folder / name, target_triple=triple) for name, triple in files.items()}


@pytest.mark.parametrize("name", ["windows.dll", "windows.a", "macos.dylib", "macos.tar", "module.wasm"])
def test_libraries_for_other_systems_are_told_alike(name: str, elsewhere: dict[str, Path], library: Path) -> None:
    found, shared = inspect_library(elsewhere[name]), inspect_library(library)
    assert found["modules"] == shared["modules"]
    assert found["library"]["machine"] != shared["library"]["machine"]
    for key in ("interface", "functions", "trees"):
        assert found["library"][key] == shared["library"][key]


def test_objects_of_webassembly_are_not_read(elsewhere: dict[str, Path]) -> None:
    with pytest.raises(UnsupportedError, match=r"module\.a: WebAssembly objects are not supported"):
        inspect_library(elsewhere["module.a"])


HEADER = b"member/         0           0     0     644     8         `\n"


def test_what_holds_no_code_is_refused(tmp_path: Path) -> None:
    nested = tmp_path / "nested.a"
    nested.write_bytes(b"!<arch>\n" + HEADER + b"!<arch>\n")
    with pytest.raises(ArchiveError, match=r"nested\.a: it contains no object file"):
        inspect_library(nested)


def test_libraries_for_several_processors_are_not_read(tmp_path: Path) -> None:
    fat = tmp_path / "fat.dylib"
    fat.write_bytes(struct.pack(">2I5I", 0xCAFE_BABE, 1, 0x0100_0007, 0, 4096, 100, 12) + bytes(5000))
    with pytest.raises(UnsupportedError, match=r"fat\.dylib: only 64-bit code for one macOS processor"):
        inspect_library(fat)


def test_tables_of_other_systems_are_bounded(elsewhere: dict[str, Path], tmp_path: Path) -> None:
    windows, macos = (bytearray(elsewhere[name].read_bytes()) for name in ("windows.dll", "macos.dylib"))
    (at,) = struct.unpack_from("<I", windows, 0x3C)
    struct.pack_into("<H", windows, at + 6, 65_535)
    place, segment = 32, 0x19
    while struct.unpack_from("<I", macos, place)[0] != segment:
        place += struct.unpack_from("<I", macos, place + 4)[0]
    struct.pack_into("<I", macos, place + 64, 1 << 30)
    for data, cause in ((windows, "65,535 sections"), (macos, "exceed its load command")):
        path = tmp_path / "damaged"
        path.write_bytes(data)
        with pytest.raises(ArchiveError, match=cause):
            inspect_library(path)


@pytest.mark.parametrize("name", ["windows.dll", "windows.a", "macos.dylib", "module.wasm"])
def test_damaged_libraries_for_other_systems_are_refused_or_read(
    name: str, elsewhere: dict[str, Path], tmp_path: Path
) -> None:
    damaged_are_refused_or_read(elsewhere[name], tmp_path)


@pytest.mark.parametrize("suffix", [".so", ".a", ".tar"])
def test_damaged_libraries_are_refused_or_read(suffix: str, factories: list[Factory], tmp_path: Path) -> None:
    damaged_are_refused_or_read(export_library(library_root(factories), tmp_path / f"both{suffix}"), tmp_path)


def damaged_are_refused_or_read(path: Path, folder: Path) -> None:
    data = path.read_bytes()
    damaged = folder / f"damaged{path.suffix}"
    source = random.Random(3)
    refused = 0
    for _ in range(150):
        content = bytearray(data[: source.randrange(len(data))] if source.random() < 0.3 else data)
        for _ in range(source.randrange(1, 40)):
            # most of the parsed bytes are in headers at both ends
            place = source.choice((source.randrange(256), -source.randrange(1, 2500), source.randrange(len(data))))
            if abs(place) < len(content):
                content[place] = source.randrange(256)
        damaged.write_bytes(content)
        try:
            inspect_library(damaged)
        except (ArchiveError, UnsupportedError):
            refused += 1
    assert refused > 30
