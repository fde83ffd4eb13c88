"""Functions of the convention of tvm-ffi, for modules and for the operators of graph modules."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.codegen.abi.entry import AotEntry
from mlfc.codegen.c_host import packed_head
from mlfc.codegen.c_interface import LICENCE, InterfaceTensor
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer, c_string, comment_text
from mlfc.support.content import Data

PREFIX = "__tvm_ffi_"
_MAIN = f"{PREFIX}main"
_LONGEST_LITERAL = 4095
_ROW = 32


def ffi_entries(entry: AotEntry, *, alone: bool) -> str:
    """Return the function of a module, and those that describe it.

    If the module is `alone` in its library, calling the library calls this one.
    """
    module = entry.unit.module
    names = [f"{PREFIX}{module}", *([_MAIN] if alone and module != "main" else [])]
    writer = Writer()
    for name in names:
        with writer.block(f"TVM_DLL {ffi_head(name)}"):
            writer.line(f"const DLTensor *tensors[{entry.slots}];")
            writer.line(f"void *data[{entry.slots}];")
            writer.line("(void)handle;")
            writer.line("return mlfc_ffi_entry(&function, args, num_args, result, tensors, data);")
        writer.line()
    if entry.keeps_state:
        with writer.block(f"TVM_DLL {ffi_head(f'{PREFIX}{module}_state_reset')}"):
            writer.lines(["const DLTensor *tensors[1];", "void *data[1];", "(void)handle;"])
            writer.line("return mlfc_ffi_entry(&reset_function, args, num_args, result, tensors, data);")
        writer.line()
    for kind, text in (("metadata", _metadata(entry)), ("doc", _doc(entry))):
        with writer.block(f"TVM_DLL {ffi_head(f'{PREFIX}_{kind}_{module}')}"):
            _write_text(writer, text)
            writer.lines(["(void)handle;", "(void)args;", "(void)num_args;"])
            writer.line("return mlfc_ffi_text((const char *)text, result);")
        writer.line()
    return writer.text()


def _write_text(writer: Writer, text: str) -> None:
    """Write the array ``text``: as a string that people can read where C allows one of this length."""
    data = text.encode("utf-8", "replace")
    if len(data) < _LONGEST_LITERAL:
        lines = text.splitlines(keepends=True)
        head, tail = "static const char text[] =", ";"
        parts = [c_string(line, len(line)) for line in lines]
    else:
        head, tail = "static const unsigned char text[] = {", "};"
        rows = [(*data, 0)[start : start + _ROW] for start in range(0, len(data) + 1, _ROW)]
        parts = [f"{', '.join(map(str, row))}," for row in rows]
    writer.line(head)
    with writer.indented():
        writer.lines(parts)
    writer.line(tail)


def ffi_head(name: str) -> str:
    """Return the declaration of a function of the convention."""
    return f"int {name}(void *handle, const struct mlfc_any *args, int32_t num_args, struct mlfc_any *result)"


def _metadata(entry: AotEntry) -> str:
    """Return the description of the arguments: the types in tvm-ffi's form, and the tensors."""
    types = [{"type": "None"}, *({"type": "ffi.Tensor"} for _ in entry.all_tensors)]
    inputs, outputs = entry.tensors
    described = {
        "type_schema": json.dumps({"type": "ffi.Function", "args": types}),
        "inputs": [_described(tensor) for tensor in inputs],
        "outputs": [_described(tensor) for tensor in outputs],
    }
    return json.dumps(described)


def _described(tensor: InterfaceTensor) -> dict[str, Any]:
    value = tensor.value
    return {"name": value.name, "shape": list(value.shape), "dtype": value.dtype}


def _doc(entry: AotEntry) -> str:
    """Return the documentation of the function for people."""
    inputs, outputs = entry.tensors
    lines = [f"Run the model {entry.unit.module} once, on contiguous tensors of the CPU."]
    lines += ["", "Parameters", "----------"]
    for kind, group in (("read", inputs), ("written; left out, they are returned", outputs)):
        lines += [f"{tensor.value.name} : {tensor.value.dtype}{list(tensor.value.shape)}, {kind}" for tensor in group]
    return "\n".join(lines) + "\n"


def operator_entries(unit: Unit, code: GeneratedCode, abi: Sequence[str]) -> Mapping[str, Data]:
    """Return the file by which tvm-ffi calls the operators of a module: its own code has packed functions of them."""
    if "ffi" not in abi:
        return {}
    writer = Writer()
    writer.lines([f"/* target: {comment_text(unit.target_text)} */", f"/* {LICENCE} */"])
    writer.lines(["#include <stdint.h>", "#include <tvm/runtime/c_backend_api.h>", '#include "mlfc_ffi.h"', ""])
    for kernel in unit.kernels_in_code:
        # functions of devices take their scratch from the caller
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
    return {f"src/{unit.module}_entries.c": writer.text().encode()}
