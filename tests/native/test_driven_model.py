"""Graphs that run here with all operators in a program on the device compute the same as local ones."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.cli.main import app
from mlfc.errors import InputError, OptionError, RemoteError, RunError
from mlfc.factory import Factory
from mlfc.micro import Session
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.bare_metal import ELF
from mlfc.micro.firmware.graph_source import graph_of_archive, graph_of_factory
from mlfc.micro.firmware.host_driven import host_driven_firmware, linked_storages
from mlfc.micro.rpc.minrpc import RemoteTensor
from mlfc.micro.rpc.transport import program_transport
from mlfc.micro.run.project_run import DrivenModel, build_host_driven, driven_model
from mlfc.relay import ir
from mlfc.runtime import GraphExecutor, GraphModule, cpu
from tests.conftest import need
from tests.harness import module_of, seeded_inputs
from tests.native.spec_host import DeviceError, SpecGraph, SpecHost
from tests.projects import QUICK, build_quickly

pytestmark = pytest.mark.usefixtures("quick_builds")

HOST = find_board("host")
MODEL = "kws_ref_model.tflite"


@pytest.fixture(scope="module", autouse=True)
def _toolchain() -> None:
    need("make", "make")
    need("gcc", "gcc")


@pytest.fixture(scope="module")
def factory(models: Path) -> Factory:
    module, params = mlfc.import_model(models / MODEL)
    return mlfc.build(module, HOST.target, params, executor="graph", module_name="kws")


@pytest.fixture(scope="module")
def driven(factory: Factory) -> Iterator[DrivenModel]:
    with driven_model(graph_of_factory(factory), HOST) as model:
        yield model


def test_outputs_and_every_tensor_between_are_those_of_the_local_run(driven: DrivenModel, factory: Factory) -> None:
    local = load_factory(factory)
    assert isinstance(local, GraphModule)
    assert driven.inputs == local.inputs
    for seed in range(3):
        inputs = seeded_inputs(driven.inputs, seed)
        expected = local.run(inputs)
        for name, output in driven.run(inputs).items():
            np.testing.assert_array_equal(output, expected[name])
        made = driven.tensors(inputs)
        local.executor.set_input(next(iter(local.executor.get_input_info())), *inputs.values())
        steps = {name: array for _, arrays in local.executor.steps() for name, array in arrays.items()}
        assert list(made) == list(steps)
        assert len(made) == len(factory.program.calls)
        for name, array in made.items():
            np.testing.assert_array_equal(array, steps[name], err_msg=name)


def test_every_operator_is_timed_by_the_device(driven: DrivenModel, factory: Factory) -> None:
    inputs = seeded_inputs(driven.inputs, 0)
    measured = driven.profile(inputs, repeat=2)
    assert [item.function for item in measured.operators] == [
        factory.code.function_names[call.kernel.name] for call in factory.program.calls
    ]
    assert len(measured.runs) == 2
    # the device's times are part of the time measured here
    assert 0 < sum(item.nanoseconds for item in measured.operators) < 1e9 * max(measured.runs)
    for name, output in driven.run(inputs).items():
        np.testing.assert_array_equal(measured.outputs[name], output)


def test_what_a_device_cannot_do(driven: DrivenModel) -> None:
    executor = driven.model.executor
    name = next(iter(executor.get_input_info()))
    array = next(iter(seeded_inputs(driven.inputs, 0).values()))
    with pytest.raises(InputError, match="cannot read this machine's memory"):
        executor.set_input_zero_copy(name, array)
    with pytest.raises(InputError, match="does not fit"):
        executor.set_input(name, array[:, :1])
    remote = driven._session.remote
    with pytest.raises(RemoteError, match="no memory for 1000000000 bytes"):
        remote.allocate(1_000_000_000)


def test_views_and_several_outputs() -> None:
    inputs = {"x": np.random.default_rng(0).standard_normal((2, 6), np.float32)}

    def turned(variables: dict[str, ir.Var]) -> ir.Expr:
        return ir.call("reshape", [ir.call("tanh", [variables["x"]])], newshape=(3, 4))

    module = module_of(
        inputs,
        {"sum": lambda x: ir.call("add", [turned(x), turned(x)]), "power": lambda x: ir.call("exp", [turned(x)])},
    )
    factory = mlfc.build(module, HOST.target, executor="graph", module_name="several")
    expected = load_factory(factory).run(inputs)
    with driven_model(graph_of_factory(factory), HOST) as model:
        got = model.run(inputs)
    assert list(got) == list(expected)
    for name, output in got.items():
        np.testing.assert_array_equal(output, expected[name])


def test_an_archive_of_tvm(shared: Path) -> None:
    folder = shared / "fixtures/tvm-0.14"
    known = np.load(folder / "kws_io.npz")
    with driven_model(graph_of_archive(folder / "kws_graph_c.tar.xz"), HOST) as model:
        for given, expected in zip(known["inputs"], known["outputs"], strict=True):
            (output,) = model.run({str(known["input_name"]): given}).values()
            np.testing.assert_array_equal(output, expected)


def test_modules_for_other_executors_are_refused(shared: Path, models: Path) -> None:
    with pytest.raises(OptionError, match=r"for the executor aot.*--executor graph"):
        graph_of_archive(shared / "fixtures/tvm-0.14/kws_aot_c.tar.xz")
    module, params = mlfc.import_model(models / "hello_world_int8.tflite")
    with pytest.raises(OptionError, match="for the executor aot"):
        graph_of_factory(mlfc.build(module, "c", params))


def test_boards_without_a_driver_are_refused(factory: Factory) -> None:
    source = graph_of_factory(factory)
    with pytest.raises(OptionError, match="'nucleo_l4r5zi' cannot be driven by a host: its serial port has no driver"):
        host_driven_firmware(source, find_board("nucleo_l4r5zi"))


def test_one_of_several_modules_brings_its_own_table_of_functions(models: Path, tmp_path: Path) -> None:
    factories = []
    for name in ("kws_ref_model", "hello_world_int8"):
        module, params = mlfc.import_model(models / f"{name}.tflite")
        factories.append(mlfc.build(module, HOST.target, params, executor="graph", module_name=name))
    archive = mlfc.export_model_library_format(factories, tmp_path / "both.tar")
    with driven_model(graph_of_archive(archive, "hello_world_int8"), HOST) as model:
        inputs = seeded_inputs(model.inputs, 1)
        expected = mlfc.load(archive, "hello_world_int8").run(inputs)
        for name, output in model.run(inputs).items():
            np.testing.assert_array_equal(output, expected[name])


def test_a_project_is_driven_by_the_names_of_microtvm(factory: Factory, tmp_path: Path) -> None:
    options = {"board": "host", "project_type": "host_driven", **QUICK}
    template = mlfc.micro.get_microtvm_template_projects("makefile")
    project = mlfc.micro.generate_project(template, factory, tmp_path / "project", options)
    build_quickly(project, tmp_path / "project")
    inputs = seeded_inputs(load_factory(factory).inputs, 0)
    with Session(project.transport()) as session:
        lib = session.get_system_lib()
        executor = GraphExecutor(factory.graph_json, lib, session.device)
        for name, value in factory.params.items():
            executor.set_input(name, value)
        executor.set_input(*next(iter(inputs.items())))
        executor.run()
        output = executor.get_output(0)
    np.testing.assert_array_equal(output, next(iter(load_factory(factory).run(inputs).values())))
    assert str(session.device) == "remote cpu(0)"
    assert session.device != cpu()


def test_firmware_that_does_not_start_says_so(tmp_path: Path) -> None:
    program = tmp_path / "firmware"
    program.write_text("#!/bin/sh\necho no such core >&2\nexit 9\n")
    program.chmod(0o755)
    with (
        pytest.raises(RunError, match=r"status 9 \(no such core\)"),
        Session(program_transport([str(program)], tmp_path)),
    ):
        pass


def test_the_command(command: Callable[..., str], models: Path, tmp_path: Path) -> None:
    model, between = models / "hello_world_int8.tflite", tmp_path / "between.npz"
    outputs, local = tmp_path / "driven.npz", tmp_path / "local.npz"
    command("run", model, "--outputs", local)
    text = command("run", model, "--host-driven", "--profile", "--json", "--outputs", outputs, "--tensors", between)
    document = json.loads(text)
    assert [row["function"] for row in document["operators"]]
    one, two = np.load(local), np.load(outputs)
    assert one.files == two.files
    np.testing.assert_array_equal(one[one.files[0]], two[two.files[0]])
    tensors = np.load(between)
    assert len(tensors.files) == len(document["operators"])
    np.testing.assert_array_equal(tensors[tensors.files[-1]], two[two.files[0]])


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (("--port", "/dev/null"), "require --host-driven"),
        (("--tensors", "t.npz"), "require --host-driven"),
        (("--host-driven", "--memory"), "excludes --selftest and --memory"),
        (("--host-driven", "--repeat", "3"), "--repeat requires --profile"),
        (("--host-driven", "--board", "nowhere"), "unknown board"),
    ],
)
def test_options_that_do_not_go_together(options: tuple[str, ...], fault: str, models: Path) -> None:
    with pytest.raises(OptionError, match=fault):
        CliRunner().invoke(app, ["run", str(models / "hello_world_int8.tflite"), *options], catch_exceptions=False)


@pytest.mark.skipif(os.name != "posix", reason="pseudo terminals are POSIX's")
def test_a_board_at_a_serial_port(models: Path, tmp_path: Path, command: Callable[..., str]) -> None:
    module, params = mlfc.import_model(models / "hello_world_int8.tflite")
    factory = mlfc.build(module, HOST.target, params, executor="graph", module_name="hello")
    archive = mlfc.export_model_library_format(factory, tmp_path / "hello.tar")
    source = graph_of_archive(archive)
    build_host_driven(source, HOST, tmp_path)
    ours, theirs = os.openpty()
    device = subprocess.Popen([str(tmp_path / ELF)], stdin=ours, stdout=ours)
    try:
        port = os.ttyname(theirs)
        document = json.loads(command("run", archive, "--host-driven", "--port", port, "--profile", "--json"))
        assert len(document["operators"]) == len(source.graph.nodes) - len(source.graph.arg_nodes)
        with driven_model(source, HOST, port) as model:
            inputs = seeded_inputs(model.inputs, 3)
            expected = load_factory(factory).run(inputs)
            for name, output in model.run(inputs).items():
                np.testing.assert_array_equal(output, expected[name])
        other = graph_of_factory(mlfc.build(module, HOST.target, params, executor="graph", module_name="other"))
        with pytest.raises(RunError, match="firmware is for another model"), driven_model(other, HOST, port):
            pass
    finally:
        device.kill()
        device.wait()
        os.close(ours)
        os.close(theirs)
    with pytest.raises(RunError, match="cannot be opened"), driven_model(source, HOST, str(tmp_path / "no-port")):
        pass


def test_parameters_are_in_the_firmware_and_others_are_sent(models: Path) -> None:
    module, params = mlfc.import_model(models / "hello_world_int8.tflite")
    factory = mlfc.build(module, HOST.target, params, executor="graph", module_name="hello")
    local = load_factory(factory)
    assert isinstance(local, GraphModule)
    with driven_model(graph_of_factory(factory), HOST) as model:
        inputs = seeded_inputs(model.inputs, 0)
        executor, remote = model.model.executor, model._session.remote
        name = max(factory.params, key=lambda key: factory.params[key].nbytes)
        address = executor._memory.address(executor._arguments[name])
        data = factory.params[name].tobytes()
        assert remote.read(address, len(data)) == data
        assert remote.holds(address, data)
        assert not remote.holds(address, bytes(len(data)))
        remote.write(address, data)
        with pytest.raises(RemoteError, match="constants of the firmware"):
            remote.write(address, bytes([data[0] ^ 1]))
        tensor = RemoteTensor(address, (1,), (1, 8, 1), cpu())
        with pytest.raises(RemoteError, match="constants of the firmware"):
            remote.copy(tensor, tensor)
        # weights that differ from the firmware's get their own memory
        other = np.flip(factory.params[name]).copy()
        for runs in (executor, local.executor):
            runs.set_input(name, other)
        assert executor._memory.address(executor._arguments[name]) != address
        for tensor_name, output in model.run(inputs).items():
            np.testing.assert_array_equal(output, local.run(inputs)[tensor_name])


def test_hosts_of_microtvm_set_all_parameters(factory: Factory) -> None:
    local = load_factory(factory)
    source = graph_of_factory(factory)
    assert linked_storages(source.graph, source.params)
    with driven_model(source, HOST) as model:
        host = SpecHost(model._session.exchange)
        # two executors at the same time, beside the model's own
        graphs = [SpecGraph(host, factory.graph_json) for _ in range(2)]
        given = [seeded_inputs(local.inputs, seed) for seed in range(2)]
        graphs[0].set_input(**given[0], **factory.params)
        graphs[1].load_params(factory.params)
        graphs[1].set_input(**given[1])
        for graph in graphs:
            graph.run()
        for graph, inputs in zip(graphs, given, strict=True):
            for index, output in enumerate(local.run(inputs).values()):
                assert graph.output(index) == output.tobytes()
        name = max(factory.params, key=lambda key: factory.params[key].nbytes)
        with pytest.raises(DeviceError, match="constants of the firmware, which other values cannot replace"):
            graphs[0].set_input(**{name: np.zeros_like(factory.params[name])})
