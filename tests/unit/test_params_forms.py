"""Parameters as JSON and BSON: bit-exact round trips, and rejected input."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from mlfc.archive.read import bson
from mlfc.archive.read.params_forms import MAX_JSON, WRITERS, Base64, load_bson, load_json
from mlfc.errors import ArchiveError, OptionError
from mlfc.support import dtypes
from mlfc.support.content import to_bytes
from mlfc.support.params import load_params

Load = Callable[..., dict[str, npt.NDArray[Any]]]
LOADERS: dict[str, Load] = {"json": load_json, "bson": load_bson, "params": load_params}


def every_kind() -> dict[str, npt.NDArray[Any]]:
    """Return tensors of every dtype that use all bits, with odd shapes and names."""
    generator = np.random.default_rng(3)
    params: dict[str, npt.NDArray[Any]] = {}
    for dtype in dtypes.SCALARS:
        count = 7 * dtypes.nbytes(dtype)
        raw = generator.integers(0, 2 if dtype == "bool" else 256, count, np.uint8)
        params[f"of {dtype}"] = raw.view(dtypes.to_numpy(dtype)).reshape(7, 1)
    params['layer/Ä "x"\\\0\n'] = np.array(2.5)
    params[""] = np.zeros((0, 3), np.int8)
    params["turned"] = np.arange(6, dtype=np.int32).reshape(2, 3).T
    params["big-endian"] = np.arange(3, dtype=">i4")
    params["nan"] = np.array([0x7FC00001, 0xFFFFFFFF, 0x80000000], np.uint32).view(np.float32)
    params["brain"] = np.array([0x7F81, 1], np.uint16).view(ml_dtypes.bfloat16)
    return params


@pytest.mark.parametrize("form", LOADERS)
def test_every_bit_comes_back(form: str) -> None:
    params = every_kind()
    content = WRITERS[form](params)
    data = to_bytes(content)
    assert content.nbytes == len(data)
    loaded = LOADERS[form](data)
    assert list(loaded) == sorted(params)
    for name, array in params.items():
        assert loaded[name].shape == array.shape
        assert loaded[name].dtype == array.dtype.newbyteorder("=")
        assert loaded[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes(), name


@pytest.mark.parametrize("form", LOADERS)
def test_equal_parameters_give_equal_bytes(form: str) -> None:
    params = every_kind()
    turned = dict(reversed(params.items()))
    assert to_bytes(WRITERS[form](params)) == to_bytes(WRITERS[form](turned))


@pytest.mark.parametrize("form", LOADERS)
def test_no_parameters_are_some_too(form: str) -> None:
    assert LOADERS[form](to_bytes(WRITERS[form]({}))) == {}


def test_json_is_what_other_programs_read() -> None:
    array = np.array([[1, -2], [3, 4]], np.int16)
    document = json.loads(to_bytes(WRITERS["json"]({"w": array})))
    assert document == {
        "format": "mlfc-params",
        "version": 1,
        "params": [{"name": "w", "dtype": "int16", "shape": [2, 2], "data": "AQD+/wMABAA="}],
    }


@pytest.mark.parametrize("length", [0, 1, 2, 3, 4, 3 << 20, (4 << 20) + 1, (8 << 20) + 2])
def test_base64_in_pieces_is_base64(length: int) -> None:
    data = np.random.default_rng(length).bytes(length)
    text = Base64(data)
    assert to_bytes(text) == base64.b64encode(data)
    assert text.nbytes == len(base64.b64encode(data))


GOOD: dict[str, Any] = {"name": "w", "dtype": "int16", "shape": [2], "data": b"abcd"}
BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "another_format": ({"format": "npz"}, "does not declare the format"),
    "another_version": ({"version": 2}, "expected .* of version"),
    "another_key": ({"more": 1}, "unknown keys"),
    "no_list": ({"params": {"w": GOOD}}, "not a list"),
    "no_tensor": ({"params": [3]}, "name, dtype, shape and data"),
    "a_key_too_many": ({"params": [{**GOOD, "strides": [1]}]}, "name, dtype, shape and data"),
    "a_name_twice": ({"params": [GOOD, GOOD]}, "is duplicated"),
    "a_number_as_name": ({"params": [{**GOOD, "name": 1}]}, "is not a string"),
    "an_unknown_dtype": ({"params": [{**GOOD, "dtype": "complex64"}]}, "dtype is unknown"),
    "a_list_as_dtype": ({"params": [{**GOOD, "dtype": ["int16"]}]}, "dtype is unknown"),
    "a_negative_extent": ({"params": [{**GOOD, "shape": [-2]}]}, "shape"),
    "an_extent_that_is_true": ({"params": [{**GOOD, "shape": [True]}]}, "shape"),
    "an_absurd_shape": ({"params": [{**GOOD, "shape": [0, 1 << 40, 1 << 40], "data": b""}]}, "shape"),
    "too_many_dimensions": ({"params": [{**GOOD, "shape": [1] * 33}]}, "shape"),
    "too_few_bytes": ({"params": [{**GOOD, "shape": [3]}]}, "4 bytes of data"),
    "text_as_data": ({"params": [{**GOOD, "data": "äöü"}]}, "data cannot be read"),
    "no_data": ({"params": [{**GOOD, "data": None}]}, "data cannot be read"),
}


def as_json(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, dict):
        return {key: as_json(item) for key, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("form", ["json", "bson"])
@pytest.mark.parametrize("name", BROKEN)
def test_what_breaks_the_form_is_refused(name: str, form: str) -> None:
    changes, message = BROKEN[name]
    document = {"format": "mlfc-params", "version": 1, "params": [GOOD], **changes}
    data = json.dumps(as_json(document)).encode() if form == "json" else to_bytes(bson.encode(document))
    with pytest.raises(ArchiveError, match=message) as caught:
        LOADERS[form](data, place="a.tar: p")
    assert str(caught.value).startswith("a.tar: p")


@pytest.mark.parametrize("data", ["AQD", "AQD+/wMABAA", "AQD-_wMABAA=", " AQD=", "A===", 5])
def test_data_that_are_no_base64_are_refused(data: Any) -> None:
    document = {"format": "mlfc-params", "version": 1, "params": [{**GOOD, "data": data}]}
    with pytest.raises(ArchiveError, match="tensor 'w'"):
        load_json(json.dumps(document).encode())


def test_json_that_would_take_too_much_memory_is_neither_written_nor_read() -> None:
    # a broadcast array of zeros, which takes no memory
    large = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (MAX_JSON + 1,), (0,))
    with pytest.raises(OptionError, match="Write parameters in the form params"):
        WRITERS["json"]({"w": large})
    with pytest.raises(ArchiveError, match=r"Use the \.params file"):
        load_json(large.data)
