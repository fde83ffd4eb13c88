"""Archives written by TVM 0.14 build, run, and give exactly the results of TVM's own build of the model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.archive import load_profiled
from mlfc.cli.main import app
from mlfc.errors import OptionError, RunError
from mlfc.runtime import GraphExecutor, LibraryModule, cpu
from mlfc.runtime.executors.graph_json import parse_graph
from mlfc.support.params import load_params
from tests.conftest import need

CASES = [("kws_graph_c", "kws"), ("kws_aot_c", "kws"), ("multi", "kws"), ("multi", "ad")]
# all except the one built by clang, which uses mlfc's default flags
unoptimized = pytest.mark.usefixtures("unoptimized_builds")


@pytest.fixture(scope="module")
def folder(shared: Path) -> Path:
    return shared / "fixtures" / "tvm-0.14"


def recorded(folder: Path, module: str) -> tuple[str, Any, Any]:
    """Return the input's name, inputs, and TVM's outputs."""
    with np.load(folder / f"{module}_io.npz") as arrays:
        return str(arrays["input_name"]), arrays["inputs"], arrays["outputs"]


@unoptimized
def test_clang_builds_an_archive_of_two_modules(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_by_clang(folder, "multi", tmp_path, monkeypatch)


def test_clang_builds_an_archive_as_users_do(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_by_clang(folder, "kws_graph_c", tmp_path, monkeypatch)


def check_by_clang(folder: Path, archive: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", need("clang", "clang"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _, inputs, outputs = recorded(folder, "kws")
    (found,) = mlfc.load(folder / f"{archive}.tar.xz", "kws").run(inputs[3]).values()
    np.testing.assert_array_equal(found.reshape(-1), outputs[3].reshape(-1))


@unoptimized
@pytest.mark.parametrize(("archive", "module"), CASES)
def test_outputs_are_those_of_tvm(folder: Path, archive: str, module: str) -> None:
    name, inputs, outputs = recorded(folder, module)
    model = mlfc.load(folder / f"{archive}.tar.xz", module)
    # neither metadata nor Relay text contain the shapes of AOT outputs, so they are flat
    assert [(info.name, info.shape, info.dtype) for info in model.inputs] == [(name, inputs.shape[1:], "int8")]
    assert [info.name for info in model.outputs] == ["Identity"]
    for given, expected in zip(inputs, outputs, strict=True):
        found = model.run({name: given})["Identity"]
        np.testing.assert_array_equal(found.reshape(expected.shape), expected)


@unoptimized
@pytest.mark.parametrize(("archive", "module"), CASES)
def test_bound_buffers_and_executors_give_the_same(folder: Path, archive: str, module: str) -> None:
    name, inputs, outputs = recorded(folder, module)
    factory = mlfc.load_module(folder / f"{archive}.tar.xz", module)
    buffer = inputs[0].copy()
    call = factory.bind([buffer])
    for given, expected in zip(inputs, outputs, strict=True):
        buffer[...] = given
        assert call() == 0
        np.testing.assert_array_equal(call.outputs["Identity"].reshape(-1), expected.reshape(-1))
    executor = factory[module](cpu(0))
    executor.set_input(name, inputs[1])
    executor.run()
    np.testing.assert_array_equal(executor.get_output(0).reshape(-1), outputs[1].reshape(-1))
    assert executor.get_input_index(name) == 0


@unoptimized
def test_a_graph_factory_unpacks_and_its_parts_run(folder: Path) -> None:
    name, inputs, outputs = recorded(folder, "kws")
    factory = mlfc.load_module(folder / "kws_graph_c.tar.xz")
    graph_json, lib, params = factory
    assert (factory.type_key, lib.type_key) == ("GraphExecutorFactory", "c")
    assert sorted(params) == sorted(f"p{index}" for index in range(50))
    executor = mlfc.runtime.GraphExecutor(graph_json, lib, mlfc.runtime.cpu(0))
    assert (executor.get_num_inputs(), executor.get_num_outputs()) == (51, 1)
    executor.run(**{name: inputs[2]})
    np.testing.assert_array_equal(executor.get_output(0), outputs[2])
    # TVM's registry also has the functions, in its order
    library = LibraryModule(lib.path)
    assert len(library.registered_names) == 9
    assert library.registered_names[0] == "tvmgen_kws_fused_cast_subtract"
    assert all(lib.implements_function(found) for found in library.registered_names)


@unoptimized
def test_an_aot_factory_has_no_graph(folder: Path) -> None:
    graph_json, lib, params = mlfc.load_module(folder / "kws_aot_c.tar.xz")
    assert (graph_json, params, lib.format) == ("", {}, "c")
    assert "tvmgen_kws_run" in lib.get_source()


@unoptimized
def test_operators_of_a_graph_are_timed(folder: Path) -> None:
    name, inputs, outputs = recorded(folder, "kws")
    profile = load_profiled(folder / "kws_graph_c.tar.xz").profile({name: inputs[0]}, repeat=2)
    np.testing.assert_array_equal(profile.outputs["Identity"], outputs[0])
    assert len(profile.operators) == 14
    assert profile.operators[0].function == "tvmgen_kws_fused_cast_subtract"
    assert sum(item.share for item in profile.operators) == pytest.approx(1)
    with pytest.raises(OptionError, match="no hook for timers"):
        load_profiled(folder / "kws_aot_c.tar.xz")


@unoptimized
def test_run_takes_them_from_the_command_line(folder: Path, tmp_path: Path) -> None:
    name, inputs, outputs = recorded(folder, "ad")
    np.savez(tmp_path / "in.npz", **{name: inputs[0]})
    command = ["run", str(folder / "multi.tar.xz"), "--module", "ad", "--inputs", str(tmp_path / "in.npz")]
    result = CliRunner().invoke(app, [*command, "--outputs", str(tmp_path / "out.npz"), "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["outputs"][0]["max"] == outputs[0].max()
    with np.load(tmp_path / "out.npz") as found:
        np.testing.assert_array_equal(found["Identity"], outputs[0].reshape(-1))


@unoptimized
def test_another_graph_and_its_parameters_fit_each_other(folder: Path) -> None:
    graph = parse_graph((folder / "conv_graph.json").read_bytes())
    params = load_params((folder / "conv.params").read_bytes())
    assert list(graph.arguments) == ["data", "p0"]
    for name, array in params.items():
        entry = graph.entries[graph.arguments[name]]
        assert (entry.shape, entry.dtype, entry.nbytes) == (array.shape, array.dtype.name, array.nbytes)
    assert [graph.entries[head].shape for head in graph.heads] == [(1, 2048)]
    layouts = {node.function: node.attrs.get("kernel_layout") for node in graph.nodes if node.function}
    assert layouts["tvmgen_default_fused_nn_contrib_conv2d_NCHWc_nn_relu"] == "OIHW4i4o"
    with pytest.raises(RunError, match="lacks functions of the graph: tvmgen_default_fused_layout_transform, "):
        GraphExecutor(graph, mlfc.load_module(folder / "kws_graph_c.tar.xz").lib)
