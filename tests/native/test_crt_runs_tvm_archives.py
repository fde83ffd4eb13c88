"""Archives written by TVM 0.14 run on our C runtime, in C, with the outputs of TVM's own build."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.native.crt_build import NO_SYSTEM_LIB, PROGRAMS, compile_c, run, sources, unpack, write_tree

# TVM's code has unused variables, calls functions without prototypes and shifts negative numbers.
TVM_CODE = ("-std=c99", "-w", "-g", "-fsanitize=address", "-fno-sanitize-recover=all")


@pytest.fixture(scope="module")
def graph_program(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    tree = write_tree(tmp_path_factory.mktemp("graph"))
    unpack(shared / "fixtures/tvm-0.14/kws_graph_c.tar.xz", tree / "model")
    code = sorted((tree / "model/codegen/host/src").glob("*.c"))
    files = [PROGRAMS / "run_graph.c", *code, *sources(tree), tree / "runtime/host/platform.c"]
    return compile_c(tree, "run_graph", files, TVM_CODE)


def samples(shared: Path, model: str, folder: Path) -> tuple[Path, bytes, str]:
    """Write a model's inputs to a file; return its path, the outputs and the input's name."""
    arrays = np.load(shared / f"fixtures/tvm-0.14/{model}_io.npz")
    assert arrays["inputs"].dtype == arrays["outputs"].dtype == np.int8
    (folder / "inputs.bin").write_bytes(arrays["inputs"].tobytes())
    return folder / "inputs.bin", arrays["outputs"].tobytes(), str(arrays["input_name"])


@pytest.mark.parametrize("how", ["load", "link", "module"])
def test_graph_archive(shared: Path, graph_program: Path, tmp_path: Path, how: str) -> None:
    inputs, outputs, name = samples(shared, "kws", tmp_path)
    model = graph_program.parent / "model"
    graph, params = model / "executor-config/graph/kws.graph", model / "parameters/kws.params"
    assert run(graph_program, graph, params, how, name, inputs) == outputs


@pytest.mark.parametrize(("archive", "models"), [("kws_aot_c", ["kws"]), ("multi", ["kws", "ad"])])
def test_aot_archive_in_the_workspace_that_its_header_says(
    shared: Path, tmp_path: Path, archive: str, models: list[str]
) -> None:
    tree = write_tree(tmp_path)
    unpack(shared / f"fixtures/tvm-0.14/{archive}.tar.xz", tree / "model")
    code = sorted((tree / "model/codegen/host/src").glob("*.c"))
    flags = [*TVM_CODE, NO_SYSTEM_LIB, "-I", str(tree / "model/codegen/host/include")]
    flags += ["-DWITH_AD"] if "ad" in models else []
    program = compile_c(tree, "run_aot", [PROGRAMS / "run_aot.c", *code, *sources(tree, rpc=False)], flags)
    for model in models:
        inputs, outputs, _ = samples(shared, model, tmp_path)
        assert run(program, model, inputs) == outputs
