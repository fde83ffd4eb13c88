"""Parameter files written by TVM 0.14, and the exact bytes that their format prescribes."""

from __future__ import annotations

import io
import json
import tarfile

import ml_dtypes
import numpy as np
import pytest

import mlfc
from mlfc.errors import OptionError
from mlfc.support.params import decode_ndarray, encode_ndarray, load_params, save_params

WORKED_EXAMPLE = bytes.fromhex(
    "b79c04054f8de5f7 0000000000000000 0100000000000000 0200000000000000 7030 0100000000000000"
    "3fa1b496f0405edd 0000000000000000 01000000 00000000 01000000 02200100"
    "0200000000000000 0800000000000000 00000040 00008040"
)


def test_the_worked_example_of_the_format():
    params = {"p0": np.array([2.0, 4.0], np.float32)}
    assert save_params(params) == WORKED_EXAMPLE
    assert load_params(WORKED_EXAMPLE)["p0"].tolist() == [2.0, 4.0]


def test_an_empty_dictionary_is_what_an_aot_build_stores():
    assert save_params({}).hex() == "b79c04054f8de5f7" + "00" * 24
    assert load_params(save_params({})) == {}


def test_tvm_graph_parameters_fit_the_graph_that_they_belong_to(shared):
    folder = shared / "fixtures" / "tvm-0.14"
    data = (folder / "conv.params").read_bytes()
    params = load_params(data)
    graph = json.loads((folder / "conv_graph.json").read_text())
    shapes = {
        node["name"]: tuple(shape)
        for node, shape in zip(graph["nodes"], graph["attrs"]["shape"][1], strict=False)
        if node["op"] == "null"
    }
    assert params
    assert {name: array.shape for name, array in params.items()} == {name: shapes[name] for name in params}
    assert load_params(save_params(params)).keys() == params.keys()
    assert len(save_params(params)) == len(data)


@pytest.mark.parametrize("archive", ["kws_aot_c", "kws_graph_c", "multi"])
def test_every_parameter_file_of_tvm_archives_reads_and_writes_back(shared, archive):
    with tarfile.open(shared / "fixtures" / "tvm-0.14" / f"{archive}.tar.xz") as tar:
        members = [member for member in tar.getmembers() if member.name.endswith(".params")]
        files = [tar.extractfile(member).read() for member in members]
    assert files
    for data in files:
        params = load_params(data)
        again = save_params(params)
        assert len(again) == len(data)
        assert {name: (a.dtype, a.tobytes()) for name, a in load_params(again).items()} == {
            name: (a.dtype, a.tobytes()) for name, a in params.items()
        }


@pytest.mark.parametrize(
    "array",
    [
        np.float64(2.5),
        np.zeros((0, 3), np.int16),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.array([True, False, True]),
        np.array([1.5, -2.0], ml_dtypes.bfloat16),
        np.array([1, 2**63], np.uint64),
        np.float16([0.5]),
    ],
    ids=["scalar", "empty", "strided big-endian", "bool", "bfloat16", "uint64", "float16"],
)
def test_values_survive(array):
    array = np.asarray(array)
    again, end = decode_ndarray(b"xx" + encode_ndarray(array), 2)
    assert end == len(encode_ndarray(array)) + 2
    assert again.shape == array.shape
    assert again.dtype == array.dtype.newbyteorder("=")
    np.testing.assert_array_equal(again, array)


# as TVM 0.27 writes {"b": [True, False, True]}; TVM 0.14 writes the type 01 01 01 00
BOOLS_OF_027 = bytes.fromhex(
    "b79c04054f8de5f7 0000000000000000 0100000000000000 0100000000000000 62 0100000000000000"
    "3fa1b496f0405edd 0000000000000000 01000000 00000000 01000000 06080100"
    "0300000000000000 0300000000000000 010001"
)


def test_bool_is_read_and_written_in_the_form_of_each_tvm():
    params = {"b": np.array([True, False, True])}
    older = BOOLS_OF_027.replace(bytes([6, 8, 1, 0]), bytes([1, 1, 1, 0]))
    assert mlfc.save_param_dict(params) == older
    assert mlfc.save_param_dict({"b": mlfc.runtime.array(params["b"])}, abi="ffi") == BOOLS_OF_027
    for data in (older, BOOLS_OF_027, bytearray(BOOLS_OF_027)):
        (found,) = mlfc.load_param_dict(data).values()
        assert found.dtype == np.bool_
        assert found.tolist() == [True, False, True]
    with pytest.raises(OptionError, match="unknown calling convention 'fii'; nearest: 'ffi'"):
        mlfc.runtime.save_param_dict(params, abi="fii")


def test_bool_is_a_one_bit_unsigned_integer():
    header = io.BytesIO(encode_ndarray(np.array([True])))
    assert header.getvalue()[28:32] == bytes([1, 1, 1, 0])
