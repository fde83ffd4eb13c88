"""The main function of firmware that runs its model once: inputs from the host, outputs and measures to the host."""

from __future__ import annotations

from collections.abc import Sequence

from mlfc.archive.templates.subject import described_subject, given_pools
from mlfc.codegen.c_interface import RESERVED
from mlfc.codegen.writer import Writer, comment_text
from mlfc.support.c_names import unique
from mlfc.support.module_info import ModuleInterface
from mlfc.support.tensor_info import TensorInfo

_LICENCE = "SPDX-License-Identifier: 0BSD"
INPUTS, OUTPUTS, REPORT = "inputs.bin", "outputs.bin", "report.txt"


def standalone_main(name: str, details: ModuleInterface) -> str:
    """Return the C file that feeds the model, runs it, and reports."""
    prefix = f"tvmgen_{name}"
    inputs, outputs = details.inputs, details.outputs
    fields = _fields(inputs, outputs)
    macros = [f"{prefix.upper()}_{field.upper()}_SIZE" for field in fields]
    subject = described_subject(name, details)
    pools, mapped = given_pools(subject), subject.maps_tensors
    w = Writer()
    w.lines([f"/* Runs module {comment_text(name)} once and reports. {_LICENCE} */", f'#include "{prefix}.h"'])
    w.lines(['#include "counter.h"', '#include "host_io.h"', '#include "report.h"', '#include "stack_paint.h"', ""])
    w.lines(["#ifdef MLFC_TRACE", '#include "mlfc_trace.h"', "#else", "enum { trace_spent = 0 };", "#endif", ""])
    buffers = _mapped(fields, len(inputs)) if mapped else [f"tensor_{field}" for field in fields]
    for buffer, macro in () if mapped else zip(buffers, macros, strict=True):
        w.line(_buffer(buffer, f"{macro} > 0 ? {macro} : 1", 16))
    for pool in pools:
        w.lines(pool.definition)
    w.line()
    with w.block("int main(void)"):
        if pools:
            w.line(f"struct {prefix}_workspace_pools pools = {{{', '.join(pool.array for pool in pools)}}};")
        given_first = "&pools" if pools else ""
        _fill_structs(w, prefix, buffers, len(inputs), given_first if mapped else None)
        call = ", ".join([*([] if mapped else ["&inputs", "&outputs"]), *(["&pools"] if pools else [])])
        given = list(zip(buffers, macros, strict=True))
        _transfers(w, "read", INPUTS, given[: len(inputs)])
        w.lines(["measures.startup = counter_ticks();", "stack_paint();", "started = counter_ticks();"])
        w.line(f"status = {prefix}_run({call});")
        w.lines(["measures.ticks = counter_ticks() - started - trace_spent;", "measures.stack = stack_used();"])
        with w.block("if (stack_ran_out())"):
            w.line("return 6;")
        with w.block("if (status != 0)"):
            w.line("return 4;")
        _transfers(w, "write", OUTPUTS, given[len(inputs) :])
        w.line(f'return report_write("{REPORT}", &measures) == 0 ? 0 : 5;')
    return w.text()


def _buffer(name: str, size: str, alignment: int) -> str:
    """Return an array that start-up code does not clear."""
    return f'static uint8_t {name}[{size}] __attribute__((aligned({alignment}), section(".bss.noinit.io")));'


def _fields(inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]) -> list[str]:
    """Return the fields' names as the header has them: made of all tensors' names together."""
    return unique((tensor.name for tensor in (*inputs, *outputs)), RESERVED)


def _mapped(fields: Sequence[str], num_inputs: int) -> list[str]:
    """Return where tensors in the workspace are found."""
    return [f"{'inputs' if index < num_inputs else 'outputs'}.{field}" for index, field in enumerate(fields)]


def _fill_structs(w: Writer, prefix: str, buffers: Sequence[str], num_inputs: int, mapped: str | None) -> None:
    """Write the structs of pointers; `mapped` are the arguments of the functions that give them, where there are."""
    for kind, group in (("inputs", buffers[:num_inputs]), ("outputs", buffers[num_inputs:])):
        values = f"{{{', '.join(group) or '0'}}}" if mapped is None else f"{prefix}_map_{kind}({mapped})"
        w.line(f"struct {prefix}_{kind} {kind} = {values};")
        if mapped is not None and not group:
            w.line(f"(void){kind};")
    w.lines(["struct measures measures;", "uint64_t started;", "int32_t status;", "int file;"])


def _transfers(w: Writer, verb: str, path: str, tensors: Sequence[tuple[str, str]]) -> None:
    if not tensors:
        return
    w.line(f'file = host_open("{path}", {int(verb == "write")});')
    tests = ["file == -1", *(f"host_{verb}(file, {field}, {macro}) != 0" for field, macro in tensors)]
    with w.block(f"if ({' || '.join(tests)})"):
        w.line(f"return {2 if verb == 'read' else 3};")
    w.line("host_close(file);")
