"""Models compiled ahead of time whose entry is a packed function, described by tables in their own code."""

from __future__ import annotations

import ctypes
from typing import Any

from mlforge.errors import ArchiveError
from mlforge.runtime import c_abi
from mlforge.runtime.aot_module import AotModule, BoundCall
from mlforge.runtime.arrays import Array
from mlforge.runtime.device import cpu
from mlforge.runtime.library_module import LibraryModule
from mlforge.runtime.packed_func import PackedFunc
from mlforge.runtime.tensor_info import TensorInfo
from mlforge.support.locks import ForkSafeLock

_TABLES_VERSION = 1


class _TensorInfo(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("num_shape", ctypes.c_int64),
        ("dtype", c_abi.DLDataType),
    )


class _Metadata(ctypes.Structure):
    """The head of TVMMetadata: what stands behind it says how pools are filled, which the entry does itself."""

    _fields_ = (
        ("version", ctypes.c_int64),
        ("inputs", ctypes.POINTER(_TensorInfo)),
        ("num_inputs", ctypes.c_int64),
        ("outputs", ctypes.POINTER(_TensorInfo)),
        ("num_outputs", ctypes.c_int64),
    )


class PackedAotModule(AotModule):
    """A model behind TVM's packed AOT interface: ``tvmgen_<name>_run`` on tensors, inputs first.

    Parameters
    ----------
    library : LibraryModule
    name : str
        Of the module.

    Raises
    ------
    ArchiveError
        If the library has no such entry, or no tables that say what it takes.
    """

    def __init__(self, library: LibraryModule, name: str) -> None:
        entry = library.find_function(f"tvmgen_{name}_run")
        tables = library.find_function(f"tvmgen_{name}_get_c_metadata")
        if not isinstance(entry, PackedFunc) or tables is None:
            lacking = f"tvmgen_{name}_run" if entry is None else f"tvmgen_{name}_get_c_metadata"
            raise ArchiveError(
                f"the code has no function {lacking}, so this is no model that runs by itself",
                place=library.path,
                next_step="Take its functions one by one with mlforge.load_module(path).lib",
            )
        metadata = _Metadata.from_address(tables())
        if metadata.version != _TABLES_VERSION:
            raise ArchiveError(f"tables of version {metadata.version} are not known", place=library.path)
        self.inputs = tuple(_info(metadata.inputs[index]) for index in range(metadata.num_inputs))
        self.outputs = tuple(_info(metadata.outputs[index]) for index in range(metadata.num_outputs))
        self.device = cpu()
        self._lock = ForkSafeLock()
        self._entry = entry

    def _call(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        arrays = [*inputs.values(), *outputs.values()]
        prepared = self._entry.prepare([c_abi.array_tensor(array, self.device) for array in arrays])
        call = BoundCall(prepared)
        call.keep = prepared  # type: ignore[attr-defined]  # partials take attributes
        call.inputs, call.outputs = inputs, outputs
        return call


def _info(entry: Any) -> TensorInfo:
    shape = tuple(entry.shape[index] for index in range(entry.num_shape))
    return TensorInfo(entry.name.decode(errors="replace"), shape, c_abi.dtype_name(entry.dtype))
