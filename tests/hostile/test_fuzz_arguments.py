"""Compiled functions compute or reject any arguments from Python; nothing ends the process."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest

import mlfc
from mlfc.errors import InputError, MlfcError, RunError
from mlfc.runtime import LibraryModule
from mlfc.runtime.devices.device import cpu
from mlfc.runtime.ffi.native_code import FfiFunc
from mlfc.runtime.tensor.c_abi import DLTensor, array_tensor
from tests.native.test_abi_entries import MAIN, exported

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Exports:
    """An object of another library with an arbitrary ``__dlpack__``."""

    def __init__(self, result: Any) -> None:
        self._result = result

    def __dlpack__(self, **_options: Any) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def __repr__(self) -> str:
        return f"Exports({self._result!r})"


DTYPES = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.array_dtypes(max_size=2),
    st.sampled_from([np.dtype("int8"), np.dtype(object), np.dtype("M8[s]")]),
)
SHAPES = st.one_of(st.just((1, 1)), hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=3))


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Draw arrays of every dtype and layout: transposed, reversed, broadcast, read-only, byte-swapped."""
    array = np.zeros(draw(SHAPES), draw(DTYPES))
    change = draw(st.integers(0, 5))
    if change == 1:
        array = array.T[..., ::-1] if array.ndim else array
    elif change == 2:
        array = np.broadcast_to(array, (2, *array.shape))
    elif change == 3:
        array.flags.writeable = False
    elif change == 4:
        array = array.astype(array.dtype.newbyteorder())
    elif change == 5 and array.ndim:
        array = np.repeat(array, 2, axis=-1)[..., ::2]
    return array


VALUES = st.one_of(
    arrays(),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(),
    st.text(st.characters(categories=["Cs", "Cc", "Lu"])),
    st.binary(),
    st.binary().map(bytearray),
    st.lists(st.integers(), max_size=2),
    st.complex_numbers(),
    st.sampled_from([np.int8(3), np.float16(1), np.uint64(2**64 - 1), np.bool_(True), mlfc.cpu(), object, len]),
    st.one_of(st.none(), st.integers(), st.text(), st.just(ValueError("no"))).map(Exports),
)
FITTING = st.builds(lambda value: np.full((1, 1), value, np.int8), st.integers(-128, 127))


@pytest.fixture(scope="module")
def library(models: Path, tmp_path_factory: pytest.TempPathFactory) -> LibraryModule:
    return LibraryModule(exported(models, tmp_path_factory.mktemp("fuzz"), abi=("classic", "ffi")))


def failure_of(function: Any, args: list[Any]) -> Exception | None:
    """Call a function; return its exception, if any."""
    try:
        function(*args)
    except Exception as error:
        return error
    return None


@pytest.mark.parametrize("convention", ["classic", "ffi"])
@hypothesis.settings(max_examples=150)
@hypothesis.given(args=st.lists(st.one_of(VALUES, FITTING), max_size=4))
def test_any_objects(library: LibraryModule, convention: str, args: list[Any]) -> None:
    address = library.address("__tvm_ffi_hello")
    assert address is not None
    function = library["hello"] if convention == "classic" else FfiFunc(address, "hello", owner=library)
    error = failure_of(function, args)
    if error is None:
        assert all(array.shape == (1, 1) and array.dtype.name == "int8" for array in args)
    else:
        assert isinstance(error, (InputError, RunError))
        assert "hello" in str(error)


@hypothesis.settings(max_examples=150)
@hypothesis.given(args=st.lists(st.one_of(VALUES, FITTING), max_size=4))
def test_any_objects_through_tvm_ffi(library: LibraryModule, args: list[Any]) -> None:
    tvm_ffi = pytest.importorskip("tvm_ffi", reason="pip install apache-tvm-ffi")
    function = tvm_ffi.load_module(library.path).hello
    error = failure_of(function, args)
    if error is None:
        assert len(args) in (1, 2)
    else:
        assert not isinstance(error, MlfcError)  # it raises Python's own exceptions


SMALL = st.integers(-3, 9)
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "data": st.just(None),
        "ndim": st.integers(-(2**31), 2**31 - 1) | SMALL,
        "shape": st.just(None),
        "device": st.tuples(SMALL, SMALL),
        "dtype": st.tuples(st.integers(0, 255), st.integers(0, 255), st.integers(0, 65535)),
        "extents": st.tuples(*[st.integers(-(2**63), 2**63 - 1) | SMALL] * 2),
        "strides": st.tuples(*[st.integers(-(2**63), 2**63 - 1) | SMALL] * 2),
    },
)


@hypothesis.settings(max_examples=250)
@hypothesis.given(changes=st.tuples(FIELDS, FIELDS), codes=st.tuples(*[st.integers(-2, 20)] * 2), count=SMALL)
def test_any_tensors(
    library: LibraryModule, changes: tuple[dict[str, Any], ...], codes: tuple[int, ...], count: int
) -> None:
    """Pass tensors as C does: a matching one runs, any other is rejected before it is read."""
    kept = [np.full((1, 1), 7, np.int8) for _ in range(2)]
    tensors = [_changed(array_tensor(array, cpu()), change) for array, change in zip(kept, changes, strict=True)]
    values = (ctypes.c_void_p * 2)(*map(ctypes.addressof, tensors))
    result, code = ctypes.c_int64(), ctypes.c_int(4)
    status = library.library[MAIN](
        values, (ctypes.c_int * 2)(*codes), count, ctypes.byref(result), ctypes.byref(code), None
    )
    assert status in (0, -1)
    assert kept[1][0, 0] == (-16 if status == 0 else 7)
    if count != 2:
        assert status == -1


def _changed(tensor: DLTensor, change: dict[str, Any]) -> DLTensor:
    for name, value in change.items():
        if name in ("extents", "strides"):
            pointer = ctypes.cast((ctypes.c_int64 * 2)(*value), ctypes.POINTER(ctypes.c_int64))
            setattr(tensor, "shape" if name == "extents" else name, pointer)
        elif name in ("device", "dtype"):
            field = getattr(tensor, name)
            for (part, _), number in zip(field._fields_, value, strict=True):
                setattr(field, part, number)
        else:
            setattr(tensor, name, value)
    return tensor
