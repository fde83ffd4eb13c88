"""Tensors: created, copied, stored, and exchanged with other libraries without a copy."""

from __future__ import annotations

import gc
import struct
import subprocess
import sys
import weakref
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm_ffi
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mlfc.errors import ArchiveError, ExchangeError, InputError
from mlfc.runtime import NDArray, TensorInfo, array, cpu, empty, from_dlpack
from mlfc.runtime.tensor.arrays import by_name
from mlfc.support import dtypes
from tests.conftest import need_opencl

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def shares(left: Any, right: Any) -> bool:
    return bool(np.shares_memory(np.asarray(left), np.asarray(right)))


def test_a_tensor_is_a_copy_of_values_at_an_aligned_place() -> None:
    made = array(X)
    assert (made.shape, made.dtype, made.ndim, made.nbytes, made.device) == ((2, 3, 4), "float32", 3, 96, cpu(0))
    np.testing.assert_array_equal(made.numpy(), X)
    assert not shares(made, X)
    assert made.handle % 64 == 0
    assert array([[1, 2]], dtype="int8").numpy().dtype == np.int8
    assert str(made) == "NDArray(float32[2, 3, 4] on cpu(0))"


def test_copies_must_fit() -> None:
    target = empty((2, 3, 4))
    assert target.copyfrom(X) is target
    np.testing.assert_array_equal(target.copyto(cpu(0)).numpy(), X)
    np.testing.assert_array_equal(array(X[:, ::-1]).numpy(), X[:, ::-1])
    with pytest.raises(InputError, match=r"float32\[2, 3, 4\] cannot be copied to float32\[24\]"):
        target.copyto(empty((24,)))
    with pytest.raises(InputError, match=r"float64\[2, 3, 4\] cannot be copied to float32"):
        target.copyfrom(X.astype(np.float64))
    locked = X.copy()
    locked.flags.writeable = False
    with pytest.raises(InputError, match="read-only"):
        target.copyto(from_dlpack(locked))
    with pytest.raises(InputError, match=r"invalid tensor shape \[2, -1\]"):
        empty((2, -1))
    with pytest.raises(InputError, match="tuple of integers, got 3"):
        empty(3)  # type: ignore[arg-type]
    for make in (lambda: empty((1,), "int8", "cpu"), lambda: array([1.0], "float32")):  # type: ignore[arg-type]
        with pytest.raises(InputError, match="expected a device, got '"):
            make()
    with pytest.raises(InputError, match="unknown dtype 'float31'"):
        empty((2,), "float31")


@pytest.mark.parametrize("dtype", dtypes.SCALARS)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (1, 1), (2, 3)])
def test_the_stored_form_comes_back(dtype: str, shape: tuple[int, ...]) -> None:
    made = array(np.ones(shape), dtype=dtype)
    loaded = NDArray.load_from_bytes(made.save_to_bytes())
    assert (loaded.shape, loaded.dtype, loaded.is_read_only) == (shape, dtype, True)
    np.testing.assert_array_equal(loaded.numpy(), made.numpy())


def test_the_stored_form_is_tvms() -> None:
    # the tensor of the format specification's example
    data = bytes.fromhex(
        "3fa1b496f0405edd 0000000000000000 01000000 00000000 01000000 02200100"
        "0200000000000000 0800000000000000 00000040 00008040"
    )
    assert array([2, 4], dtype="float32").save_to_bytes() == data
    np.testing.assert_array_equal(NDArray.load_from_bytes(data).numpy(), [2, 4])
    with pytest.raises(ArchiveError, match="byte 40"):
        NDArray.load_from_bytes(data[:40] + struct.pack("<q", 9) + data[48:])


def test_elements_below_a_byte_say_that_they_are_padded() -> None:
    made = array([1, -2, 3], dtype="int4")

    class Holder:
        def __dlpack__(self, **_: Any) -> Any:
            return made.__dlpack__(max_version=(1, 1))

    taken = from_dlpack(Holder())
    assert (taken.dtype, taken.shape) == ("int4", (3,))
    np.testing.assert_array_equal(taken.numpy(), made.numpy())
    with pytest.raises(ExchangeError, match="take a byte each"):
        made.__dlpack__()


@pytest.mark.parametrize("dtype", sorted({*dtypes.SCALARS} - {"bfloat16", *dtypes.NARROW}))
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (1, 1), (2, 3)])
def test_numpy_takes_the_memory_itself(dtype: str, shape: tuple[int, ...]) -> None:
    made = array(np.ones(shape), dtype=dtype)
    taken = np.from_dlpack(made)
    assert (taken.shape, taken.dtype) == (shape, np.dtype(dtype))
    np.testing.assert_array_equal(taken, np.ones(shape, dtype))
    if made.nbytes:
        taken[...] = 0
        assert not made.numpy().any()


def test_tvm_ffi_takes_and_gives_the_memory_itself() -> None:
    for dtype in ("float32", "int8", "bfloat16", "bool", "uint64"):
        made = array([[0, 1, 1]], dtype=dtype)
        taken = tvm_ffi.from_dlpack(made)
        assert (tuple(taken.shape), str(taken.dtype)) == ((1, 3), dtype)
        given = from_dlpack(taken)
        assert (given.dtype, given.shape) == (dtype, (1, 3))
        given.copyfrom(np.ones((1, 3), dtypes.to_numpy(dtype)))
        np.testing.assert_array_equal(made.numpy(), given.numpy())
        assert shares(made, given)


def test_jax_takes_and_gives_the_memory_itself() -> None:
    import jax.numpy as jnp

    for dtype in ("float32", "int8", "bfloat16", "bool"):
        made = array([[0, 1, 1]], dtype=dtype)
        taken = jnp.from_dlpack(made)
        assert taken.unsafe_buffer_pointer() == made.handle
        assert taken.sum() == 2
        back = from_dlpack(taken)
        assert (back.handle, back.dtype) == (made.handle, dtype)


if find_spec("torch") is not None:  # optional because of its size

    def test_torch_takes_and_gives_the_memory_itself() -> None:
        import torch

        for dtype in ("float32", "int8", "bfloat16", "bool"):
            made = array([[0, 1, 1]], dtype=dtype)
            taken = torch.from_dlpack(made)
            assert taken.data_ptr() == made.handle
            taken.zero_()
            assert not np.asarray(made, np.float32).any()
            assert from_dlpack(taken).handle == made.handle


@given(hnp.arrays(np.int16, hnp.array_shapes(max_dims=4, max_side=5)), st.data())
def test_any_view_keeps_its_elements(values: Any, data: st.DataObject) -> None:
    view = values[data.draw(hnp.basic_indices(values.shape, allow_newaxis=False, allow_ellipsis=False))]
    if not isinstance(view, np.ndarray):
        return
    taken = from_dlpack(view)
    np.testing.assert_array_equal(taken.numpy(), view)
    np.testing.assert_array_equal(np.from_dlpack(taken), view)
    assert not view.size or shares(taken, values)


def test_what_is_only_to_be_read_stays_so() -> None:
    locked = X.copy()
    locked.flags.writeable = False
    made = from_dlpack(locked)
    assert made.is_read_only
    assert not made.numpy().flags.writeable
    taken = np.from_dlpack(made)
    assert shares(taken, locked)
    assert not taken.flags.writeable
    # the older form has no read-only flag
    with pytest.raises(ExchangeError, match="read-only") as caught:
        made.__dlpack__()
    assert isinstance(caught.value, BufferError)


def test_memory_lives_as_long_as_whoever_uses_it() -> None:
    source = X.copy()
    gone = weakref.ref(source)
    made = from_dlpack(source)
    taken = np.from_dlpack(made)
    again = from_dlpack(tvm_ffi.from_dlpack(made)).numpy()[1:]
    del source, made
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(taken, X)
    del taken
    gc.collect()
    assert gone() is not None
    np.testing.assert_array_equal(again, X[1:])
    del again
    gc.collect()
    assert gone() is None


def test_a_capsule_that_nobody_takes_gives_the_memory_back() -> None:
    made = array(X)
    gone = weakref.ref(made._described.owner)
    capsules = [made.__dlpack__(), made.__dlpack__(max_version=(1, 0))]
    del made
    gc.collect()
    assert gone() is not None
    del capsules
    gc.collect()
    assert gone() is None


def test_a_capsule_is_taken_once() -> None:
    class Holder:
        def __init__(self, capsule: Any) -> None:
            self.capsule = capsule

        def __dlpack__(self, **_: Any) -> Any:
            return self.capsule

    for versions in ({}, {"max_version": (1, 0)}):
        holder = Holder(array(X).__dlpack__(**versions))
        np.testing.assert_array_equal(from_dlpack(holder).numpy(), X)
        with pytest.raises(ExchangeError, match="expected an unused tensor"):
            from_dlpack(holder)


def test_devices_and_streams_are_looked_at() -> None:
    made = array(X)
    assert made.__dlpack_device__() == (1, 0)
    with pytest.raises(ExchangeError, match="do not support streams"):
        made.__dlpack__(stream=1)
    with pytest.raises(ExchangeError, match=r"on cpu\(0\) is not on cuda\(0\)"):
        made.__dlpack__(dl_device=(2, 0))
    with pytest.raises(ExchangeError, match="unknown device type 99"):
        made.__dlpack__(dl_device=(99, 0))
    copied = np.from_dlpack(made, copy=True)
    assert not shares(copied, made)
    np.testing.assert_array_equal(copied, X)


def test_what_cannot_be_taken_says_why() -> None:
    class Refusing:
        def __dlpack__(self, **_: Any) -> Any:
            raise RuntimeError("it requires grad")

    class Lying:
        def __dlpack__(self) -> Any:
            return 7

    with pytest.raises(ExchangeError, match="it requires grad"):
        from_dlpack(Refusing())
    with pytest.raises(ExchangeError, match="from __dlpack__ of Lying"):
        from_dlpack(Lying())
    with pytest.raises(ExchangeError, match="expected a DLPack array, got list"):
        from_dlpack([1, 2])
    for values in (X.astype(">f4"), np.array(["a"]), X.astype(np.complex64)):
        with pytest.raises(ExchangeError):
            from_dlpack(values)
    assert from_dlpack(X.astype(ml_dtypes.bfloat16)).dtype == "bfloat16"


def test_tensors_of_an_opencl_device_are_copied_there_and_back() -> None:
    gpu = need_opencl()
    there = array(X, gpu)
    assert (there.device, there.__dlpack_device__()) == (gpu, (4, 0))
    np.testing.assert_array_equal(there.numpy(), X)
    np.testing.assert_array_equal(there.copyto(gpu).copyto(cpu()).numpy(), X)
    np.testing.assert_array_equal(np.from_dlpack(there, device="cpu"), X)
    given = from_dlpack(there)
    assert given.handle == there.handle
    np.testing.assert_array_equal(NDArray.load_from_bytes(there.save_to_bytes(), gpu).numpy(), X)
    with pytest.raises(ExchangeError, match="is not on cpu"):
        there.__dlpack__(dl_device=(1, 0), copy=False)


def test_an_interpreter_that_ends_gives_memory_back_quietly() -> None:
    code = (
        "import numpy as np, tvm_ffi, mlfc.runtime as r\n"
        "kept = r.array([1.0, 2.0]); taken = np.from_dlpack(kept); given = r.from_dlpack(tvm_ffi.from_dlpack(kept))\n"
        "loop = [kept, taken, given]; loop.append(loop); view = given.numpy()[1:]"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool"])
def test_models_read_tensors_of_any_library_where_they_lie(dtype: str) -> None:
    info = TensorInfo("x", (1, 3), dtype)
    made = array([[0, 1, 1]], dtype=dtype)
    for source in (made, tvm_ffi.from_dlpack(made), made.numpy()):
        taken = by_name([source], [info], "input")["x"]
        assert taken.dtype == dtypes.to_numpy(dtype)
        assert shares(taken, made)
    with pytest.raises(InputError, match=r"x: the input does not fit: its shape is \(3,\)"):
        by_name([array([0, 1, 1], dtype=dtype)], [info], "input")


def test_a_tensor_on_a_device_is_no_input_of_code_of_the_host() -> None:
    gpu = need_opencl()
    with pytest.raises(InputError, match=r"x: the input is on opencl\(0\), and is needed on the CPU"):
        by_name([array(X, gpu)], [TensorInfo("x", X.shape, "float32")], "input")
