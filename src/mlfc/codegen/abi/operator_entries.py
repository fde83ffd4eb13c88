"""The operators of graph modules in the conventions that their own code does not have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen.abi.ffi_entries import PREFIX, ffi_head
from mlfc.codegen.c_host import packed_head
from mlfc.codegen.c_interface import LICENCE
from mlfc.codegen.emit import GeneratedCode
from mlfc.codegen.unit import Unit
from mlfc.codegen.writer import Writer, c_string, comment_text
from mlfc.support.content import Data


def operator_entries(unit: Unit, code: GeneratedCode, abi: Sequence[str]) -> Mapping[str, Data]:
    """Return the file by which tvm-ffi calls the operators of a module: its own code has packed functions of them.

    Parameters
    ----------
    unit : Unit
    code : GeneratedCode
        Of the unit.
    abi : sequence of str
    """
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
