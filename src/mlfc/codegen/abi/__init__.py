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

from mlfc.codegen.abi.dynamic import dynamic_entry
from mlfc.codegen.abi.entry import AotEntry, HostTensor, host_module
from mlfc.codegen.abi.graph import graph_entry
from mlfc.codegen.abi.relax import executable
from mlfc.codegen.c_host import packed_head
from mlfc.codegen.emit import GeneratedCode, banner
from mlfc.codegen.host.aot import main_function_name
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer, c_string
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
        parts: list[str] = []
        entry: AotEntry | None = None
        if unit.executor == "aot":
            is_first = shares[index] and shares.index(True) == index
            entry = AotEntry(unit, code, host_module(unit, code), defines_gate=is_first)
            parts += [entry.file_start(), *([classic_entries(entry, alone=alone)] if "classic" in abi else [])]
            beside |= _renamed(unit, own)
        elif "ffi" in abi:
            entry = _other_entry(unit, code, places)
            parts += [operator_entries(unit, code)] if unit.executor == "graph" else []
            parts += [entry.file_start()] if entry is not None else []
        if entry is not None and "ffi" in abi:
            parts.append(ffi_entries(entry, alone=alone))
            called.append(entry)
        if parts:
            beside[f"src/{unit.module}_entries.c"] = "\n".join(parts).encode()
    if called:
        beside["src/mlfc_relax.c"] = relax_entry(called, alone=alone).encode()
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


def classic_entries(entry: AotEntry, *, alone: bool) -> str:
    """Return the packed function of a module and the function that returns its metadata tables.

    The packed function has two names: TVM's, which other libraries also use for functions with other arguments, and one
    that is unique to this function. If the module is `alone` in its library, names without a module prefix also refer
    to it.
    """
    main = main_function_name(entry.module.prefix)
    writer = Writer()
    for name in (main, f"{_PACKED}{entry.module.name}"):
        with writer.block(f"TVM_DLL {packed_head(name)}"):
            writer.line(f"const DLTensor *tensors[{entry.slots}];")
            writer.line(f"void *data[{entry.slots}];")
            writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
            writer.line("return mlfc_classic_entry(&function, args, type_codes, num_args, tensors, data);")
        writer.line()
    if entry.keeps_state:
        with writer.block(f"TVM_DLL {packed_head(f'mlfc_packed_{entry.module.name}_state_reset')}"):
            writer.lines(["const DLTensor *tensors[1];", "void *data[1];"])
            writer.lines(["(void)out_ret_value;", "(void)out_ret_tcode;", "(void)resource_handle;"])
            writer.line("return mlfc_classic_entry(&reset_function, args, type_codes, num_args, tensors, data);")
        writer.line()
    entry.module.write_tables(writer, "", "metadata", "", "TVM_METADATA_VERSION")
    names = [f"{entry.module.prefix}_get_c_metadata", *(["get_c_metadata"] if alone else [])]
    for name in names:
        with writer.block(f"TVM_DLL {packed_head(name)}"):
            writer.lines(["(void)args;", "(void)type_codes;", "(void)num_args;", "(void)resource_handle;"])
            with writer.block("if (out_ret_value == NULL || out_ret_tcode == NULL)"):
                writer.line(f'TVMAPISetLastError("{name}: the result is expected to be a pointer, not NULL");')
                writer.line("return -1;")
            writer.line("out_ret_value->v_handle = (void *)(uintptr_t)&metadata;")
            writer.line("*out_ret_tcode = kTVMOpaqueHandle;")
            writer.line("return 0;")
        writer.line()
    if alone:
        writer.line("/* the function that calling the library itself calls */")
        writer.line(f"extern TVM_DLL const char __tvm_main__[{len(main) + 1}];")
        writer.line(f"const char __tvm_main__[{len(main) + 1}] = {c_string(main, len(main))};")
    return writer.text()


PREFIX = "__tvm_ffi_"
_PACKED = "mlfc_packed_"
_LONGEST_LITERAL = 4095
_ROW = 32


def ffi_entries(entry: AotEntry, *, alone: bool) -> str:
    """Return the tvm-ffi function of a module and the functions that describe it.

    If the module is `alone` in its library, calling the library calls this function. One of its names is unique to
    functions of modules, as that of `classic_entries`.
    """
    module = entry.module.name
    writer = Writer()
    with writer.block(f"static {ffi_head('run_model')}"):
        entry.write_ffi_call(writer)
    writer.line()
    for name in dict.fromkeys((module, *(["main"] if alone else []), f"{_PACKED}{module}")):
        with writer.block(f"TVM_DLL {ffi_head(PREFIX + name)}"):
            writer.line("return run_model(handle, args, num_args, result);")
        writer.line()
    if entry.keeps_state:
        with writer.block(f"TVM_DLL {ffi_head(f'{PREFIX}{module}_state_reset')}"):
            writer.lines(["const DLTensor *tensors[1];", "void *data[1];", "(void)handle;"])
            writer.line("return mlfc_ffi_entry(&reset_function, args, num_args, result, tensors, data);")
        writer.line()
    types = [{"type": "None"}, *({"type": "ffi.Tensor"} for _ in entry.tensors)]
    metadata: dict[str, Any] = {"type_schema": json.dumps({"type": "ffi.Function", "args": types})}
    lines = [f"Run the model {module} once, on contiguous tensors of the CPU.", "", "Parameters", "----------"]
    for kind, group, says in (
        ("inputs", entry.module.inputs, "read"),
        ("outputs", entry.module.outputs, "written; left out, they are returned"),
    ):
        metadata[kind] = [{"name": item.name, "shape": list(item.shape), "dtype": item.dtype} for item in group]
        lines += [f"{item.name} : {_text_of(item)}, {says}" for item in group]
    for kind, text in (("metadata", json.dumps(metadata)), ("doc", "\n".join(lines) + "\n")):
        with writer.block(f"TVM_DLL {ffi_head(f'{PREFIX}_{kind}_{module}')}"):
            _write_text(writer, text)
            writer.lines(["(void)handle;", "(void)args;", "(void)num_args;"])
            writer.line("return mlfc_ffi_text((const char *)text, result);")
        writer.line()
    return writer.text()


def _text_of(item: HostTensor) -> str:
    """Return the dtype and shape of a tensor; an unnamed dynamic dimension is ``?``."""
    return f"{item.dtype}[{', '.join('?' if extent is None else str(extent) for extent in item.shape)}]"


def _write_text(writer: Writer, text: str) -> None:
    """Write the array ``text``, as a readable string where C allows a literal of this length."""
    data = text.encode("utf-8", "replace")
    if len(data) < _LONGEST_LITERAL:
        lines = text.splitlines(keepends=True)
        head, tail = "static const char text[] =", ";"
        parts = [c_string(line, len(line)) for line in lines]
    else:
        head, tail = "static const unsigned char text[] = {", "};"
        parts = _rows((*data, 0))
    writer.line(head)
    with writer.indented():
        writer.lines(parts)
    writer.line(tail)


def _rows(data: Sequence[int]) -> list[str]:
    """Return the lines of an initializer with these bytes."""
    return [f"{', '.join(map(str, data[start : start + _ROW]))}," for start in range(0, len(data), _ROW)]


def relax_entry(entries: Sequence[AotEntry], *, alone: bool) -> str:
    """Return the file with the function by which TVM's `relax.VirtualMachine` loads the library.

    The functions of the virtual machine have the modules' names; that of a module `alone` in its library is ``main``.
    """
    functions = {
        "main" if alone else item.name: (f"{_PACKED}{item.name}", [value.name for value in item.inputs])
        for item in (entry.module for entry in entries)
    }
    writer = Writer()
    writer.lines([*banner(str(entries[0].unit.target)).splitlines(), '#include "mlfc_relax.h"', ""])
    with writer.block(f"TVM_DLL {ffi_head(f'{PREFIX}vm_load_executable')}"):
        with writer.block("static const unsigned char code[] =", "};"):
            writer.lines(_rows(executable(functions)))
        writer.lines(["(void)handle;", "(void)args;", "(void)num_args;"])
        writer.line("return mlfc_relax_load(code, sizeof code, result);")
    return writer.text()


def ffi_head(name: str) -> str:
    """Return the declaration of a tvm-ffi function."""
    return f"int {name}(void *handle, const struct mlfc_any *args, int32_t num_args, struct mlfc_any *result)"


def operator_entries(unit: Unit, code: GeneratedCode) -> str:
    """Return the functions that export the operators of a module to tvm-ffi, as wrappers of their packed functions."""
    writer = Writer()
    writer.lines(banner(str(unit.target)).splitlines())
    writer.lines(["#include <stdint.h>", "#include <tvm/runtime/c_backend_api.h>", '#include "mlfc_ffi.h"', ""])
    for kernel in unit.kernels_in_code:
        # device functions take their scratch buffers from the caller
        scratch = kernel.scratch if kernel.device else ()
        name, count = code.function_names[kernel.name], len(kernel.params) + len(scratch)
        writer.line(f"{packed_head(name)};")
        with writer.block(f"TVM_DLL {ffi_head(PREFIX + name)}"):
            writer.line(f"TVMValue values[{count}];")
            writer.line(f"int type_codes[{count}];")
            writer.lines(["(void)handle;", "(void)result;"])
            text = c_string(name, len(name))
            writer.line(f"return mlfc_ffi_packed({text}, {name}, {count}, args, num_args, values, type_codes);")
        writer.line()
    return writer.text()
