"""Modules compiled ahead of time run in firmware that a host drives."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mlfc
from mlfc.errors import InputError, OptionError, RemoteError
from mlfc.memory import ConstantPool
from mlfc.micro import Session
from mlfc.micro.board.board import find_board
from mlfc.micro.firmware.host_driven import host_driven_aot_firmware
from mlfc.micro.project_api import TemplateProject, get_microtvm_template_projects
from tests.conftest import need
from tests.harness import seeded_inputs
from tests.projects import QUICK, build_quickly
from tests.unit.test_cli import succeeded

pytestmark = pytest.mark.usefixtures("quick_builds")

MODEL = "hello_world_int8.tflite"
OPTIONS = {"board": "host", "project_type": "host_driven", **QUICK}


@pytest.fixture(scope="module", autouse=True)
def _toolchain() -> None:
    need("make", "make")
    need("gcc", "gcc")


def archive_of(model: Path, folder: Path, **options: Any) -> Path:
    module, params = mlfc.import_model(model)
    exported = {"system_lib": options.pop("system_lib", False)}
    factory = mlfc.build(module, params=params, module_name="hello", **options)
    return mlfc.export_model_library_format(factory, folder / "hello.tar", **exported)


@contextmanager
def session_of(archive: Path, folder: Path) -> Iterator[Session]:
    with TemplateProject(get_microtvm_template_projects("makefile")) as template:
        project = template.generate_project_from_mlf(archive, folder / "made", OPTIONS)
        with project:
            build_quickly(project, folder / "made")
            with Session(project.transport()) as session:
                yield session


@pytest.mark.parametrize(
    "options",
    [{}, {"external_workspace": True, "system_lib": True}, {"workspace_io": True, "target": "llvm"}],
    ids=["plain", "external workspace, system library", "tensors in the workspace, LLVM"],
)
def test_a_host_creates_executors_on_the_device(models: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    archive = archive_of(models / MODEL, tmp_path, **options)
    local = mlfc.load(archive)
    with session_of(archive, tmp_path) as session:
        # microTVM hosts only use the name "default"
        first, second = session.create_aot_executor("default"), session.create_aot_executor("hello")
        assert (first.get_num_inputs(), first.get_num_outputs()) == (1, 1)
        assert first.get_input_index(first.get_input_name(0)) == 0
        given = [seeded_inputs(local.inputs, seed) for seed in range(2)]
        for executor, inputs in zip((first, second), given, strict=True):
            (array,) = inputs.values()
            executor.set_input(0, array)
            # by the name in the tables, and by the model's own name, which is not an identifier
            np.testing.assert_array_equal(executor.get_input(executor.get_input_name(0)), array)
            assert executor.get_input_name(0) != local.inputs[0].name
            np.testing.assert_array_equal(executor.get_input(local.inputs[0].name), array)
        # each has its own tensors
        for executor, inputs in zip((first, second), given, strict=True):
            executor.run()
            (expected,) = local.run(inputs).values()
            np.testing.assert_array_equal(executor.get_output(0), expected)
        first.free()
        second.run()
        with pytest.raises(RemoteError, match="is not the handle of a"):
            first.run()
        with pytest.raises(RemoteError, match="tvmgen_other_get_c_metadata"):
            session.create_aot_executor("other")
        with pytest.raises(InputError, match="does not fit"):
            second.set_input(0, np.zeros(3, np.int8))
        with pytest.raises(RemoteError, match="none at the given position"):
            second.get_output(1)


def test_what_hosts_may_touch(models: Path, tmp_path: Path) -> None:
    archive = archive_of(models / MODEL, tmp_path)
    with session_of(archive, tmp_path) as session:
        executor = session.create_aot_executor()
        tensor = executor._tensor("get_input", 0)
        remote = session.remote
        remote.write(tensor.address, bytes(tensor.nbytes))
        for address, size in ((tensor.address - 1, 1), (tensor.address, tensor.nbytes + 1)):
            with pytest.raises(RemoteError, match="leaves the memory"):
                remote.write(address, bytes(size))
        executor.free()
        with pytest.raises(RemoteError, match="leaves the memory"):
            remote.write(tensor.address, bytes(tensor.nbytes))


def test_the_commands_drive_modules_of_tvm_too(shared: Path, tmp_path: Path) -> None:
    folder = shared / "fixtures" / "tvm-0.14"
    command = ("project", "create", folder / "kws_aot_c.tar.xz", "made", "--template", "makefile", "--board", "host")
    succeeded(*command, "--type", "host_driven", cwd=tmp_path)
    succeeded("project", "build", "made", "--option", "cflags=-O1", cwd=tmp_path)
    with np.load(folder / "kws_io.npz") as known:
        np.savez(tmp_path / "in.npz", **{str(known["input_name"]): known["inputs"][0]})
        succeeded("project", "run", "made", "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
        with np.load(tmp_path / "out.npz") as outputs:
            (name,) = outputs
            np.testing.assert_array_equal(outputs[name], known["outputs"][0].reshape(-1))


def test_constants_that_the_caller_loads_are_refused(models: Path) -> None:
    module, params = mlfc.import_model(models / MODEL)
    pools = [ConstantPool("flash", external=True)]
    details = mlfc.build(module, params=params, module_name="hello", constants=pools).interface()
    with pytest.raises(OptionError, match=r"constants that the caller loads.*without --load-constants"):
        host_driven_aot_firmware("hello", details, find_board("host"))
