"""Models compiled ahead of time whose entry is a packed function, described by tables in their own code."""

from __future__ import annotations

from mlfc.errors import ArchiveError
from mlfc.runtime.devices.device import cpu
from mlfc.runtime.executors.aot_module import AotModule, BoundCall, aligned, filled
from mlfc.runtime.ffi.packed_func import PackedFunc
from mlfc.runtime.libraries.aot_tables import AotTables, Functions, tables_of
from mlfc.runtime.tensor import c_abi
from mlfc.support.arrays import Array
from mlfc.support.locks import ForkSafeLock


class PackedAotModule(AotModule):
    """A model behind one of TVM's packed AOT interfaces.

    TVM's C runtime calls ``tvmgen_<name>_run`` on tensors, inputs first. The one in C++ calls
    ``tvmgen_<name>___tvm_main__``, and behind the outputs gives it the constants and the workspaces that its tables ask
    for.

    Parameters
    ----------
    library : LibraryModule
        Or what else has named functions.
    name : str
        Of the module.

    Raises
    ------
    ArchiveError
        If the library has no such entry, or no tables that say what it takes.
    """

    def __init__(self, library: Functions, name: str) -> None:
        tables = tables_of(library, name)
        prefix = f"tvmgen_{name}" if tables is None else tables.prefix
        run, main = (library.find_function(f"{prefix}_{entry}") for entry in ("run", "__tvm_main__"))
        entry = run if isinstance(run, PackedFunc) else main
        if not isinstance(entry, PackedFunc) or tables is None:
            lacking = "get_c_metadata" if isinstance(entry, PackedFunc) else "run"
            raise ArchiveError(
                f"the code has no function {prefix}_{lacking}, so the model cannot run by itself",
                place=library.path,
                next_step="Call its functions one by one: mlfc.load_module(path).lib",
            )
        self.inputs, self.outputs = tables.inputs, tables.outputs
        self.device = cpu()
        self._lock = ForkSafeLock()
        self._entry = entry
        # the function for C brings its pools along
        self._tables: AotTables | None = tables if entry is main and tables.pools else None
        self._shared = () if self._tables is None else (filled(self._tables.constants.tobytes()),)

    def _call(self, inputs: dict[str, Array], outputs: dict[str, Array]) -> BoundCall:
        pools = () if self._tables is None else tuple(map(aligned, self._tables.pools))
        arrays = [*inputs.values(), *outputs.values(), *self._shared, *pools]
        prepared = self._entry.prepare([c_abi.array_tensor(array, self.device) for array in arrays])
        call = BoundCall(prepared)
        call.keep = (prepared, arrays)  # type: ignore[attr-defined]  # partials take attributes
        call.inputs, call.outputs = inputs, outputs
        return call
