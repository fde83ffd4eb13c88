"""Several modules in one library compute the same as each module alone, and share common code and weights."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.details import module_info
from mlfc.crt import crt_files
from mlfc.errors import OptionError
from mlfc.factory import Factory, link
from mlfc.relay import ir
from mlfc.runtime import AotModule
from mlfc.support.content import to_bytes, write_data
from tests.harness import module_of
from tests.native.test_generated_module import WARNINGS, compiler, symbols
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("quick_builds")


def network(*, second: int = 1, wide: bool = False) -> ir.IRModule:
    """Return two dense layers and a softmax; models with equal `second` share the second layer's weights."""
    width = 32 if wide else 16
    rng = np.random.default_rng(0)
    first = ir.Constant(rng.standard_normal((width, 8)).astype(np.float32))
    weight = ir.Constant(np.random.default_rng(second).standard_normal((10, width)).astype(np.float32))

    def body(v):
        hidden = ir.call("nn.relu", [ir.call("nn.dense", [v["x"], first], units=width)])
        return ir.call("nn.softmax", [ir.call("nn.dense", [hidden, weight], units=10)])

    return module_of({"x": np.zeros((1, 8), np.float32)}, {"y": body})


def factories(executors: Sequence[str] = ("aot", "aot", "aot")) -> list[Factory]:
    modules = [network(), network(second=2), network(wide=True)]
    names = ("one", "two", "wide")
    return [
        mlfc.build(module, module_name=name, executor=executor)
        for module, name, executor in zip(modules, names, executors, strict=True)
    ]


X = np.linspace(-2, 2, 8, dtype=np.float32).reshape(1, 8)


@pytest.mark.parametrize("share_weights", [False, True], ids=["own", "shared-weights"])
@pytest.mark.parametrize("share_workspace", [False, True], ids=["own", "shared-workspace"])
def test_modules_compute_what_they_compute_alone(share_workspace: bool, share_weights: bool, tmp_path: Path) -> None:
    made = factories()
    linked = link(made, share_workspace=share_workspace, share_weights=share_weights)
    library = compile_shared(linked.files, tmp_path / "all.so")
    for factory in made:
        alone = compile_shared(factory.code.files, tmp_path / f"{factory.module_name}.so")
        details = module_info(factory)
        expected = AotModule(alone, details).run({"x": X})["y"]
        np.testing.assert_array_equal(AotModule(library, details).run({"x": X})["y"], expected)
    assert not np.array_equal(AotModule(library, module_info(made[1])).run({"x": X})["y"], expected)


def objects(files: dict, folder: Path) -> list[str]:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_data(folder / path, data)
    sources = sorted(str(folder / path) for path in files if path.startswith("src/") and path.endswith((".c", ".S")))
    for source in sources:
        command = [*compiler("gcc"), *WARNINGS, "-O1", f"-I{folder}/include", f"-I{folder}/crt/include", "-c", source]
        subprocess.run([*command, "-o", f"{source}.o"], check=True)
    return [f"{source}.o" for source in sources]


def test_equal_kernels_are_there_once(tmp_path: Path) -> None:
    made = factories()
    linked = link(made)
    sizes = symbols(objects(linked.files, tmp_path))
    assert linked.functions
    assert set(linked.functions) <= set(sizes)
    apart = {name for factory in made for name in factory.code.function_names.values()}
    together = {name for code in linked.modules for name in code.function_names.values()}
    assert together <= set(sizes)
    assert len(together) < len(apart)
    # all three share the softmax of ten numbers
    assert sum("softmax" in name for name in together) == 1


def test_shared_weights_are_there_once(tmp_path: Path) -> None:
    made = factories()
    linked = link(made, share_weights=True)
    sizes = symbols(objects(linked.files, tmp_path))
    weights = {name: size for name, size in sizes.items() if name.startswith("tvmgen_mlfc_shared_constant")}
    # one and two share the first layer
    assert list(weights.values()) == [16 * 8 * 4] == [linked.constants_bytes]
    assert [code.sizes.shared_constants for code in linked.modules] == [16 * 8 * 4, 16 * 8 * 4, 0]
    headers = [to_bytes(linked.files[f"include/tvmgen_{name}.h"]).decode() for name in ("one", "two", "wide")]
    assert ["_SHARES_CONSTANTS 512\n" in text for text in headers] == [True, True, False]
    assert [code.sizes.constants for code in linked.modules] == [factory.code.sizes.constants for factory in made]


def test_shared_workspace_is_one_array_of_the_largest_size(tmp_path: Path) -> None:
    made = factories()
    linked = link(made, share_workspace=True)
    pools = {name: size for name, size in symbols(objects(linked.files, tmp_path)).items() if "workspace" in name}
    largest = max(factory.plan.size for factory in made)
    assert pools == {"tvmgen_mlfc_shared_workspace": largest}
    assert (linked.workspace_bytes, linked.workspace_modules) == (largest, ("one", "two", "wide"))
    header = to_bytes(linked.files["include/tvmgen_one.h"]).decode()
    assert "shared with two, wide" in header
    assert "#define TVMGEN_ONE_SHARES_WORKSPACE 1" in header
    assert "SHARES_WORKSPACE" not in to_bytes(made[0].code.files["include/tvmgen_one.h"]).decode()


def test_executors_mix_with_one_table_of_functions(tmp_path: Path) -> None:
    made = factories(("graph", "aot", "graph"))
    linked = link(made, share_workspace=True, share_weights=True)
    headers = {f"crt/{path}": data for path, data in crt_files().items() if path.startswith("include/")}
    sizes = symbols(objects({**linked.files, **headers}, tmp_path))
    assert "TVMSystemLibEntryPoint" in sizes
    for factory, code in zip(made, linked.modules, strict=True):
        assert set(code.function_names.values()) <= set(sizes)
        assert (code.graph is None) == (factory.executor == "aot")
    tables = [path for path, data in linked.files.items() if b"TVMSystemLibEntryPoint" in to_bytes(data)]
    (table,) = tables
    text = to_bytes(linked.files[table]).decode()
    assert all(f'"{name}"' in text for name in linked.modules[0].function_names.values())
    assert all(f'"{name}"' in text for name in linked.modules[2].function_names.values())


def test_one_module_alone_shares_nothing() -> None:
    (factory, *_) = factories()
    linked = link([factory], share_workspace=True, share_weights=True)
    assert {path: to_bytes(data) for path, data in linked.files.items()} == {
        path: to_bytes(data) for path, data in factory.code.files.items()
    }


@pytest.mark.parametrize("name", ["one", "mlfc_shared"])
def test_clashing_names_are_refused(name: str) -> None:
    pair = [mlfc.build(network(), module_name="one"), mlfc.build(network(), module_name=name)]
    with pytest.raises(OptionError, match=name):
        link(pair)


def test_large_shared_weights_lie_in_one_binary_file(tmp_path: Path) -> None:
    weight = ir.Constant(np.random.default_rng(0).standard_normal((700, 512)).astype(np.float32))

    def body(v):
        return ir.call("nn.dense", [v["x"], weight], units=700)

    module = module_of({"x": np.zeros((1, 512), np.float32)}, {"y": body})
    made = [mlfc.build(module, module_name=name) for name in ("one", "two")]
    linked = link(made, share_weights=True)
    blobs = [path for path in linked.files if path.endswith(".bin")]
    assert len(blobs) == 1
    library = compile_shared(linked.files, tmp_path / "all.so")
    x = np.random.default_rng(1).standard_normal((1, 512)).astype(np.float32)
    expected = x.astype(np.float64) @ weight.data.T.astype(np.float64)
    for factory in made:
        result = AotModule(library, module_info(factory)).run({"x": x})["y"]
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)
