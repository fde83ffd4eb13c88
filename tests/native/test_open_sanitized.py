"""A short seeded run of dynamic graphs as C under the sanitizers, as in ``make fuzz``, and former failures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import parser

import mlfc
from fuzz import open_sanitized
from mlfc import archive
from mlfc.factory import Factory
from mlfc.support.executable import RunCode
from tests.conftest import need
from tests.native.sanitized_vm import VmJob, run_models


def model(text: str) -> bytes:
    proto: onnx.ModelProto = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 18]> found {text}')
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize("first", [0, 3])  # one program per compiler
def test_open_graphs_stay_in_their_memory(first: int) -> None:
    need(open_sanitized.COMPILERS[first // 3], open_sanitized.COMPILERS[first // 3])
    assert not open_sanitized.fuzz(0, first, count=3, batch=3)


def test_an_element_behind_a_tensor_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    need("clang", "clang")
    built = archive.source_folder

    def wrong(factories: Sequence[Factory]) -> dict[str, bytes]:
        return {name: content.replace(b"output[", b"output[1 + ") for name, content in built(factories).items()}

    monkeypatch.setattr(archive, "source_folder", wrong)
    made = mlfc.compile(model("(float[n] x) => (float[n] y) { y = Neg (x) }"), "c", module_name="neg")
    results, said = run_models([VmJob("neg", made.factory, [[np.zeros(16, np.float32)]])], tmp_path, ["clang"])
    assert said.startswith("neg: ")
    assert "heap-buffer-overflow" in said
    assert results == [[]]


def test_the_edge_of_nothing_is_not_read(tmp_path: Path) -> None:
    need("clang", "clang")
    data = model('(float[n] x) => (float[a] y) <int64[2] k = {1, 2}> { y = Pad <mode = "edge"> (x, k) }')
    made = mlfc.compile(data, "c", module_name="edge", shapes={"x": (mlfc.Dim("n", 0, 4),)})
    runs = [[np.zeros(0, np.float32)], [np.array([3, 4], np.float32)]]
    ((empty, two),), said = run_models([VmJob("edge", made.factory, runs)], tmp_path, ["clang"])
    assert not said
    assert not empty.outputs  # rejected, as by ONNX Runtime
    assert two.outputs[0].tolist() == [3, 3, 4, 4, 4]


def test_blocks_that_exceed_the_address_space_are_not_allocated(tmp_path: Path) -> None:
    need("gcc", "gcc-multilib")
    made = mlfc.compile(model("(int64[2] s) => (float[a,b] y) { y = ConstantOfShape (s) }"), "c", module_name="filled")
    runs = [[np.array([20000, 60000])], [np.array([2, 3])]]  # the first one needs slightly more than 2^32 bytes
    ((large, small),), said = run_models(
        [VmJob("filled", made.factory, runs)], tmp_path, ["gcc", "-m32", "-DMEMORY_LIMIT=0"]
    )
    assert not said
    assert large.status == RunCode.ALLOCATE
    assert small.outputs[0].shape == (2, 3)
