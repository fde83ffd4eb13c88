"""Executors on a device, created and driven by a microTVM-like host: several at a time, all freed in the end."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.archive.read.load import load_factory
from mlfc.errors import SessionTerminatedError
from mlfc.factory import Factory
from mlfc.micro import Session
from mlfc.support.params import save_params
from tests.harness import seeded_inputs
from tests.native.crt_build import PROGRAMS, SANITIZED, STRICT, compile_c, write_tree
from tests.native.kept_line import KeptLine
from tests.native.rpc_device import transport
from tests.native.spec_host import (
    BYTES,
    CPU,
    DEVICE,
    FUNCTION,
    INT,
    MODULE,
    NULL,
    STR,
    DeviceError,
    SpecHost,
    Tensor,
)  # fmt: skip

pytestmark = pytest.mark.usefixtures("quick_builds")

MODEL = "hello_world_int8.tflite"
SESSIONS = 3
# the runtime folders that microTVM's host project compiles
LIBRARIES = (
    "microtvm_rpc_server", "microtvm_rpc_common", "aot_executor_module", "aot_executor", "graph_executor_module",
    "graph_executor", "common", "memory",
)  # fmt: skip


@dataclass(frozen=True)
class Device:
    """A program with a model for both executors, and the expected outputs of its modules."""

    program: Path
    graph: Factory
    aot: Factory

    def expected(self, inputs: dict[str, Any]) -> bytes:
        (output,) = load_factory(self.graph).run(inputs).values()
        return output.tobytes()


@pytest.fixture(scope="module")
def device(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Device:
    """Build the program as microTVM's host project does: all sources of the model, without a header folder."""
    folder = tmp_path_factory.mktemp("device")
    module, params = mlfc.import_model(models / MODEL)
    graph = mlfc.build(module, params=params, executor="graph", module_name="graph")
    aot = mlfc.build(module, params=params, module_name="ahead")
    archive = mlfc.export_model_library_format([graph, aot], folder / "both.tar", system_lib=True, runtime=False)
    with tarfile.open(archive) as tar:
        tar.extractall(folder / "model", filter="data")
    tree = write_tree(folder)
    runtime = [path for name in LIBRARIES for path in sorted((tree / "runtime/src/runtime/crt" / name).glob("*.c"))]
    files = [PROGRAMS / "executor_device.c", *sorted((folder / "model/codegen/host/src").glob("*.c")), *runtime]
    flags = [*STRICT, *SANITIZED, "-DTVM_CRT_RPC_OWN_MEMORY_ONLY=1"]
    return Device(compile_c(tree, "executor_device", files, flags), graph, aot)


@pytest.fixture
def host(device: Device) -> Iterator[SpecHost]:
    with Session(transport(device.program)) as session:
        yield SpecHost(session.exchange)


def create_graph(host: SpecHost, device: Device) -> int:
    lib = host.system_lib()
    create = host.get_global("tvm.graph_executor.create")
    return int(host.call(create, (STR, device.graph.graph_json), (MODULE, lib), (INT, 1), (INT, 0)))


def create_aot(host: SpecHost, name: str) -> int:
    create = host.get_global("tvm.aot_executor.create")
    return int(host.call(create, (MODULE, host.system_lib()), (DEVICE, CPU), (STR, name)))


def set_by_copies(host: SpecHost, module: int, arrays: dict[str, Any]) -> None:
    """Set inputs like the wrappers of both executors: get the tensor, then copy into it."""
    for name, array in arrays.items():
        tensor = host.method(module, "get_input", (STR, name))
        assert isinstance(tensor, Tensor)
        assert tensor.shape == array.shape
        host.copy_to(tensor, np.ascontiguousarray(array).tobytes())


def output_of(host: SpecHost, module: int) -> bytes:
    host.method(module, "run")
    return host.copy_from(host.method(module, "get_output", (INT, 0)))


def sanitized(arrays: dict[str, Any]) -> dict[str, Any]:
    """Return inputs under their names in TVM's tables."""
    return {"".join(c if c.isalnum() else "_" for c in name): array for name, array in arrays.items()}


def test_two_graphs_and_two_modules_in_one_session(host: SpecHost, device: Device) -> None:
    params = device.graph.params
    assert params
    inputs = [seeded_inputs(load_factory(device.graph).inputs, seed) for seed in range(4)]
    graphs = [create_graph(host, device) for _ in range(2)]
    modules = [create_aot(host, name) for name in ("ahead", "default")]
    assert len({*graphs, *modules}) == 4
    # parameters one by one, as by set_input(**params), and as one file
    set_by_copies(host, graphs[0], {**inputs[0], **params})
    host.method(graphs[1], "load_params", (BYTES, save_params(params)))
    set_by_copies(host, graphs[1], inputs[1])
    for module, given in zip(modules, inputs[2:], strict=True):
        set_by_copies(host, module, sanitized(given))
    for module, given in zip((*graphs, *modules), inputs, strict=True):
        assert output_of(host, module) == device.expected(given)
    # freeing one leaves the others intact
    host.free(graphs[0], MODULE)
    host.free(modules[1], MODULE)
    for module, given in ((graphs[1], inputs[1]), (modules[0], inputs[2])):
        assert output_of(host, module) == device.expected(given)
    assert output_of(host, create_aot(host, "ahead")) == device.expected(
        {name: np.zeros_like(array) for name, array in inputs[0].items()}
    )


def test_wrappers_find_what_they_look_for(host: SpecHost, device: Device) -> None:
    common = ("set_input", "run", "get_output", "get_input", "get_num_outputs", "get_input_index", "get_num_inputs")
    for name in (*common, "get_input_info", "load_params", "share_params"):
        assert host.module_function(create_graph(host, device), name)
    module = create_aot(host, "default")
    for name in (*common, "get_input_name"):
        assert host.module_function(module, name)
    assert (host.method(module, "get_num_inputs"), host.method(module, "get_num_outputs")) == (1, 1)
    name = host.method(module, "get_input_name", (INT, 0))
    assert host.method(module, "get_input_index", (STR, name)) == 0


def test_executors_memory_is_the_hosts_only_as_long_as_they_are(host: SpecHost, device: Device) -> None:
    (name,) = (info.name for info in load_factory(device.graph).inputs)
    for module in (create_graph(host, device), create_aot(host, "default")):
        tensor = host.method(module, "get_input", (STR, name if module == 0x8001 else next(iter(sanitized({name: 0})))))
        data = bytes(tensor.nbytes)
        host.copy_to(tensor, data)
        beyond = Tensor(tensor.address, tensor.dtype, (*tensor.shape, 1000), tensor.offset)
        for wrong in (beyond, Tensor(tensor.address - 1, (1, 8, 1), (1,)), Tensor(16, (1, 8, 1), (1,))):
            with pytest.raises(DeviceError, match="leaves the memory that hosts may use"):
                host.copy_from(wrong)
        host.free(module, MODULE)
        with pytest.raises(DeviceError, match="leaves the memory that hosts may use"):
            host.copy_to(tensor, data)


def time_of(host: SpecHost, function: str, arguments: Sequence[tuple[int, Any]], number: int = 3) -> None:
    make = host.get_global("runtime.RPCTimeEvaluator")
    options = [(INT, value) for value in (1, 0, number, 2, 0, 100, 0, 0, 0)]
    evaluator = host.call(make, (NULL, 0), (STR, function), *options, (STR, ""))
    seconds = host.call(int(evaluator), *arguments)
    assert len(seconds) == 2 * 8
    host.free(int(evaluator), FUNCTION)


@pytest.mark.parametrize("kind", ["graph", "aot"])
def test_what_a_time_evaluator_makes_is_gone(host: SpecHost, device: Device, kind: str) -> None:
    lib = host.system_lib()
    start = host.call(host.get_global("test.count_live"))
    arguments = {
        "graph": ((STR, device.graph.graph_json), (MODULE, lib), (INT, 1), (INT, 0)),
        "aot": ((MODULE, lib), (DEVICE, CPU), (STR, "ahead")),
    }
    # more often than the number of module handles
    time_of(host, f"tvm.{kind}_executor.create", arguments[kind], number=100)
    assert host.call(host.get_global("test.count_live")) == start
    # modules that existed before remain
    time_of(host, "runtime.SystemLib", ())
    assert host.system_lib() == lib
    assert create_aot(host, "default")


def test_sessions_leave_nothing_behind(device: Device) -> None:
    line = transport(device.program)
    kept = KeptLine(line)
    counts = []
    for index in range(2 * SESSIONS):
        with Session(kept) as session:
            host = SpecHost(session.exchange)
            counts.append(host.call(host.get_global("test.count_live")))
            create_graph(host, device)
            create_aot(host, "default")
            host.allocate(1000)
            make = host.get_global("runtime.RPCTimeEvaluator")
            options = [(INT, value) for value in (1, 0, 1, 7, 0, 100, 0, 0, 0)]
            lib = host.system_lib()
            evaluator = host.call(make, (NULL, 0), (STR, "tvm.aot_executor.create"), *options, (STR, ""))
            host.call(int(evaluator), (MODULE, lib), (DEVICE, CPU), (STR, "ahead"))
            assert host.call(host.get_global("test.count_live")) > counts[-1]
            if index % 2:  # the server restarts in the middle of the session
                with pytest.raises(SessionTerminatedError):
                    host.call(host.get_global("test.start_again"))
    line.close()
    assert counts == [0] * (2 * SESSIONS)
