"""Entry points of libraries under the calling conventions of other programs, in addition to the modules' own code.

A library can export two conventions, whose symbols do not clash: ``classic``, TVM's packed functions, and ``ffi``, the
functions of tvm-ffi.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

from mlfc.codegen.abi.entry import AotEntry, HostModule, HostTensor, dynamic_entry, graph_entry, host_module
from mlfc.codegen.abi.relax import executable
from mlfc.codegen.emit import GeneratedCode, banner
from mlfc.codegen.host.aot import main_function_name
from mlfc.codegen.templates import render
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import c_string
from mlfc.errors import OptionError, unknown
from mlfc.support.content import Data, to_bytes
from mlfc.support.params import ParameterOffsets

ABIS = ("classic", "ffi")
"""The conventions, by their names in the option ``--abi``."""


def library_files(
    units: Sequence[Unit],
    codes: Sequence[GeneratedCode],
    abi: Sequence[str],
    files: Mapping[str, Data] | None = None,
    places: ParameterOffsets = MappingProxyType({}),
) -> Mapping[str, Data]:
    """Return the C files that export a library's modules to callers, by path; they override the modules' own files.

    A file may replace one of the modules' files of the same path. The files depend on the headers and sources of
    `mlfc.library.build.runtime_files`. `abi` contains elements of `ABIS`; `files` is the modules' code where it differs
    from `codes`. `places` are the offsets of the parameters of graphs in the library. A UserWarning names each module
    that tvm-ffi cannot call, with the reason.

    Raises
    ------
    OptionError
        If a convention is unknown, or a function on tensors cannot run a module.
    """
    for name in abi:
        if name not in ABIS:
            raise OptionError(unknown("calling convention", name, ABIS))
    if not abi:
        return {}
    own = files if files is not None else {path: data for code in codes for path, data in code.files.items()}
    beside: dict[str, Data] = {}
    shares = [code.workspace_peers != () for code in codes]
    alone, called = len(units) == 1, list[AotEntry]()
    for index, (unit, code) in enumerate(zip(units, codes, strict=True)):
        entry: AotEntry | None = None
        if unit.executor == "aot":
            is_first = shares[index] and shares.index(True) == index
            entry = AotEntry(unit, code, host_module(unit, code), defines_gate=is_first)
            beside |= _renamed(unit, own)
        elif "ffi" in abi:
            entry = _other_entry(unit, code, places)
        operators = _operators(unit, code) if unit.executor == "graph" and "ffi" in abi else None
        if entry is not None and "ffi" in abi:
            called.append(entry)
        if entry is not None or operators is not None:
            text = render(
                "entries.c", entry=entry, operators=operators, abi=abi, alone=alone, banner=banner(str(unit.target)),
                main=main_function_name(f"tvmgen_{unit.module}"), texts=_texts(entry) if entry else {},
            )  # fmt: skip
            beside[f"src/{unit.module}_entries.c"] = text.encode()
    if called:
        rows = _rows(_relax_code([entry.module for entry in called], alone=alone))
        text = render("relax.c", banner=banner(str(called[0].unit.target)), rows=rows)
        beside["src/mlfc_relax.c"] = text.encode()
    return beside


def _renamed(unit: Unit, files: Mapping[str, Data]) -> Mapping[str, Data]:
    """Return the files of a module compiled ahead of time that define or call its main function, with another name.

    The main function of the C interface takes plain pointers, but its name is the one by which executors look up the
    packed function, even if the library does not export that. Only the module's own files call it, so it is renamed to
    a name of the same length, which fits in place inside objects.
    """
    main = main_function_name(f"tvmgen_{unit.module}").encode()
    other = f"tvmgen_{unit.module}_on_pointers".encode().ljust(len(main), b"_")
    stems = (f"{unit.module}_lib0", f"{unit.module}_lib1")
    found = [path for path in files if PurePosixPath(path).stem in stems]
    return {path: to_bytes(files[path]).replace(main, other) for path in found}


def _other_entry(unit: Unit, code: GeneratedCode, places: ParameterOffsets) -> AotEntry | None:
    """Return the entry of a module of the graph executor, or a dynamic one; warn if tvm-ffi cannot call the module."""
    reason = _obstacle(unit, code, places)
    if reason:
        warnings.warn(f"{unit.module}: expected a model that tvm-ffi can call, got {reason}", stacklevel=2)
        return None
    return graph_entry(unit, code, places) if unit.executor == "graph" else dynamic_entry(unit, code)


def _obstacle(unit: Unit, code: GeneratedCode, places: ParameterOffsets) -> str | None:
    """Return what keeps tvm-ffi from calling a module of the graph executor, or a dynamic one, and what to do."""
    load = "load the library with mlfc.load_module"
    for kernel in unit.program.kernels:
        if kernel.device:
            return f"operators on the device '{kernel.device}'; {load}"
        if kernel.external is not None and kernel.external.module is not None:
            return f"operators in a module of the kind '{kernel.external.generator}'; {load}"
    executable = unit.executable
    if executable is not None and any(value.part for value in (*executable.inputs, *executable.outputs)):
        return f"sequences or optionals as inputs or outputs; {load}"
    if code.graph is not None and not code.graph.params.keys() <= places.get(unit.module, {}).keys():
        return "operators without the parameters of their graph; export the factory, not its lib"
    return None


_LONGEST_LITERAL = 4095
_ROW = 32


def _texts(entry: AotEntry) -> dict[str, tuple[str, list[str], str]]:
    """Return the definitions of the texts by which tvm-ffi describes a module's function."""
    module = entry.module.name
    types = [{"type": "None"}, *({"type": "ffi.Tensor"} for _ in entry.tensors)]
    metadata: dict[str, Any] = {"type_schema": json.dumps({"type": "ffi.Function", "args": types})}
    lines = [f"Run the model {module} once, on contiguous tensors of the CPU.", "", "Parameters", "----------"]
    for kind, group, says in (
        ("inputs", entry.module.inputs, "read"),
        ("outputs", entry.module.outputs, "written; left out, they are returned"),
    ):
        metadata[kind] = [{"name": item.name, "shape": list(item.shape), "dtype": item.dtype} for item in group]
        lines += [f"{item.name} : {_text_of(item)}, {says}" for item in group]
    return {"metadata": _definition(json.dumps(metadata)), "doc": _definition("\n".join(lines) + "\n")}


def _text_of(item: HostTensor) -> str:
    """Return the dtype and shape of a tensor; an unnamed dynamic dimension is ``?``."""
    return f"{item.dtype}[{', '.join('?' if extent is None else str(extent) for extent in item.shape)}]"


def _definition(text: str) -> tuple[str, list[str], str]:
    """Return the first line, the rows and the last line of an array, as a readable string where C allows its length."""
    data = text.encode("utf-8", "replace")
    if len(data) < _LONGEST_LITERAL:
        return "static const char text[] =", [c_string(line, len(line)) for line in text.splitlines(keepends=True)], ";"
    return "static const unsigned char text[] = {", _rows((*data, 0)), "};"


def _rows(data: Sequence[int]) -> list[str]:
    """Return the lines of an initializer with these bytes."""
    return [f"{', '.join(map(str, data[start : start + _ROW]))}," for start in range(0, len(data), _ROW)]


def _relax_code(modules: Sequence[HostModule], *, alone: bool) -> bytes:
    """Return the executable that TVM's `relax.VirtualMachine` loads.

    Its functions have the modules' names; that of a module `alone` in its library is ``main``.
    """
    return executable({
        "main" if alone else module.name: (f"mlfc_packed_{module.name}", [value.name for value in module.inputs])
        for module in modules
    })  # fmt: skip


def _operators(unit: Unit, code: GeneratedCode) -> list[tuple[str, int]]:
    """Return the packed function of each operator and the number of its tensors."""
    # device functions take their scratch buffers from the caller
    return [
        (code.function_names[kernel.name], len(kernel.params) + len(kernel.scratch if kernel.device else ()))
        for kernel in unit.kernels_in_code
    ]
