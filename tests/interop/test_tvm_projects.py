"""Archives that Apache TVM wrote become firmware projects."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlfc.micro.project_api import TemplateProject, get_microtvm_template_projects
from tests.conftest import need
from tests.projects import QUICK, build_quickly
from tests.unit.test_cli import mlfc, succeeded


@pytest.mark.parametrize("project_type", ["standalone", "host_driven"])
def test_a_graph_of_tvm_computes_what_tvm_did(shared: Path, tmp_path: Path, project_type: str) -> None:
    need("make", "make")
    archive = shared / "fixtures" / "tvm-0.14" / "kws_graph_c.tar.xz"
    with TemplateProject(get_microtvm_template_projects("makefile")) as template:
        options = {"project_type": project_type, "board": "host", **QUICK}
        with template.generate_project_from_mlf(archive, tmp_path / "made", options) as project:
            build_quickly(project, tmp_path / "made")
    with np.load(shared / "fixtures" / "tvm-0.14" / "kws_io.npz") as known:
        for given, expected in zip(known["inputs"][:3], known["outputs"][:3], strict=True):
            np.savez(tmp_path / "in.npz", **{str(known["input_name"]): given})
            succeeded("project", "run", "made", "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
            with np.load(tmp_path / "out.npz") as outputs:
                np.testing.assert_array_equal(outputs["Identity"], expected)
    record = json.loads((tmp_path / "made" / "project.json").read_text())
    assert (record["module"], record["executor"]) == ("kws", "graph")


@pytest.mark.parametrize("module", ["kws", "ad"])
def test_a_module_of_tvm_computes_what_tvm_did(shared: Path, tmp_path: Path, module: str) -> None:
    need("make", "make")
    folder = shared / "fixtures" / "tvm-0.14"
    command = ("project", "create", folder / "multi.tar.xz", "made", "--template", "makefile", "--module", module)
    succeeded(*command, "--board", "host", cwd=tmp_path)
    succeeded("project", "build", "made", "--option", "cflags=-O1", cwd=tmp_path)
    with np.load(folder / f"{module}_io.npz") as known:
        for given, expected in zip(known["inputs"][:3], known["outputs"][:3], strict=True):
            np.savez(tmp_path / "in.npz", **{str(known["input_name"]): given})
            succeeded("project", "run", "made", "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
            with np.load(tmp_path / "out.npz") as outputs:
                (name,) = outputs
                np.testing.assert_array_equal(outputs[name], expected.reshape(-1))  # TVM does not record the shape


def test_a_module_of_tvm_runs_without_a_project(shared: Path, tmp_path: Path) -> None:
    need("make", "make")
    folder = shared / "fixtures" / "tvm-0.14"
    command = ("run", folder / "kws_aot_c.tar.xz", "--board", "host")
    with np.load(folder / "kws_io.npz") as known:
        np.savez(tmp_path / "in.npz", **{str(known["input_name"]): known["inputs"][0]})
        succeeded(*command, "--inputs", "in.npz", "--outputs", "out.npz", cwd=tmp_path)
        with np.load(tmp_path / "out.npz") as outputs:
            (name,) = outputs
            np.testing.assert_array_equal(outputs[name], known["outputs"][0].reshape(-1))


@pytest.mark.parametrize(
    ("option", "message"), [("--profile", "cannot be profiled per operator"), ("--memory", "lacks memory metadata")]
)
def test_what_a_module_of_tvm_does_not_tell_is_refused(shared: Path, tmp_path: Path, option: str, message: str) -> None:
    need("arm-none-eabi-gcc", "gcc-arm-none-eabi")
    need("qemu-system-arm", "qemu-system-arm")
    archive = shared / "fixtures" / "tvm-0.14" / "kws_aot_c.tar.xz"
    result = mlfc("run", archive, "--board", "mps2-an386", option, cwd=tmp_path)
    assert result.returncode == 2
    assert message in result.stderr


def test_other_build_systems_take_what_mlfc_compiled(shared: Path, tmp_path: Path) -> None:
    archive = shared / "fixtures" / "tvm-0.14" / "kws_aot_c.tar.xz"
    result = mlfc("project", "create", archive, "made", "--template", "package", cwd=tmp_path)
    assert result.returncode == 2
    assert "module 'kws' was not compiled by mlfc" in result.stderr
    assert list(tmp_path.iterdir()) == []
