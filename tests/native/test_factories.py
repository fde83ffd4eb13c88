"""The factories that `build` returns run like TVM's; modules with shared memory wait for one another."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

import mlfc
from mlfc.archive.details import module_info
from mlfc.errors import OptionError
from mlfc.factory import link
from mlfc.runtime import AotModule
from tests.native.test_linked_modules import X, factories, network
from tests.shared_library import compile_shared

pytestmark = pytest.mark.usefixtures("quick_builds")


@pytest.mark.parametrize("executor", ["aot", "graph"])
@pytest.mark.parametrize("name", ["default", "one"])
def test_a_compiled_module_makes_executors(executor: str, name: str, tmp_path: Path) -> None:
    factory = mlfc.build(network(), module_name="one", executor=executor)
    run = factory[name](mlfc.cpu(0))
    run.set_input("x", X)
    run.run()
    expected = mlfc.load(mlfc.export_model_library_format(factory, tmp_path / "one.tar")).run({"x": X})["y"]
    np.testing.assert_array_equal(run.get_output(0), expected)
    assert factory.runtime.type_key == ("GraphExecutorFactory" if executor == "graph" else "AotExecutorFactory")


@pytest.mark.parametrize("executor", ["aot", "graph"])
def test_loaded_models_are_exported_again(executor: str, tmp_path: Path) -> None:
    factory = mlfc.build(network(), "llvm", executor=executor, module_name="one")
    archive = mlfc.export_model_library_format(factory, tmp_path / "first.tar", timestamp=0, test_vectors=1)
    library = factory.export_library(tmp_path / "first.so")
    from_archive, from_library = mlfc.load_module(archive), mlfc.load_module(library)
    again = mlfc.export_model_library_format(from_archive, tmp_path / "again.tar", timestamp=0)
    assert again.read_bytes() == archive.read_bytes()
    assert from_library.export_library(tmp_path / "copy.so").read_bytes() == library.read_bytes()
    from_archive.export_library(tmp_path / "again.so")
    expected = mlfc.load(library).run({"x": X})["y"]
    for name in ("copy.so", "again.so", "again.tar"):
        # archives are compiled for all processors of their kind, libraries for this one
        np.testing.assert_allclose(mlfc.load(tmp_path / name).run({"x": X})["y"], expected, rtol=1e-5)
    with pytest.raises(OptionError, match=r"or a model loaded from an archive, got machine code \(.*first\.so\)"):
        mlfc.export_model_library_format(from_library, tmp_path / "no.tar")
    with pytest.raises(OptionError, match=r"first\.so: expected a copy of the loaded library, got a request for '\.o'"):
        from_library.export_library(tmp_path / "no.o")
    with pytest.raises(OptionError, match=r"expected a module that mlfc\.load_module returned"):
        from_library.lib.export_library(tmp_path / "no.so")
    from_library.import_module(mlfc.load_module(library))
    with pytest.raises(OptionError, match="modules were imported after"):
        from_library.export_library(tmp_path / "no.so")


def test_the_three_parts_make_a_graph_executor() -> None:
    factory = mlfc.build(network(), module_name="one", executor="graph")
    graph_json, lib, params = factory
    assert set(params) == {"p0", "p1"}
    executor = mlfc.runtime.GraphExecutor(graph_json, lib, mlfc.cpu(0))
    executor.set_input("x", X)
    executor.run()
    aot = mlfc.build(network(), module_name="one")["one"](mlfc.cpu(0))
    aot.run(x=X)
    np.testing.assert_array_equal(executor.get_output(0), aot.get_output(0))


def test_modules_with_one_workspace_wait_for_one_another(tmp_path: Path) -> None:
    made = factories()
    linked = link(made, share_workspace=True)
    library = compile_shared(linked.files, tmp_path / "all.so")
    modules = [
        AotModule(library, module_info(factory, code)) for factory, code in zip(made, linked.modules, strict=True)
    ]
    expected = [module.run({"x": X})["y"] for module in modules]
    faults: list[int] = []

    def work(index: int) -> None:
        for _ in range(300):
            if not np.array_equal(modules[index].run({"x": X})["y"], expected[index]):
                faults.append(index)

    threads = [threading.Thread(target=work, args=(index % 3,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []


def test_one_workspace_has_one_lock_however_often_it_is_loaded(tmp_path: Path) -> None:
    made = factories()
    apart = compile_shared(link(made).files, tmp_path / "apart.so")
    locks = [AotModule(apart, module_info(factory))._lock for factory in made for _ in range(2)]
    # checks the locks themselves, because a race is too rare to test
    assert [locks[0] is locks[1], locks[2] is locks[3], locks[0] is locks[2]] == [True, True, False]
