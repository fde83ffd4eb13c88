"""The ahead-of-time executor: C functions that call a module's operators in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlforge.codegen.c_interface import LICENCE, POOL, Interface
from mlforge.codegen.c_types import scalar_type
from mlforge.codegen.constants import ConstantTable
from mlforge.codegen.writer import Writer, comment_text
from mlforge.errors import InternalError
from mlforge.memory import Plan
from mlforge.tir.ir import Buffer, KernelCall, Program, Value

ALIGNMENT = 64
_WORKSPACE = "workspace"
# the header, not the code, says what tracing means, so that one hook serves profilers on the host and on boards
_TRACE_HOOK = [
    "/* with MLFORGE_TRACE defined, a header sees each operator begin, and end with its output; index is its place */",
    "#ifdef MLFORGE_TRACE",
    '#include "mlforge_trace.h"',
    "#else",
    "#define MLFORGE_TRACE_BEGIN(index) ((void)0)",
    "#define MLFORGE_TRACE_END(index, data, nbytes) ((void)0)",
    "#endif",
    "",
]


@dataclass(frozen=True, eq=False)
class AotExecutor:
    """The executor of one module.

    Attributes
    ----------
    program : Program
    plan : Plan
    interface : Interface
    constants : ConstantTable
    function_names : mapping of str to str
        C name of each kernel.
    shared_workspace : str or None
        The array of another file that the module works in, instead of one of its own.
    """

    program: Program
    plan: Plan
    interface: Interface
    constants: ConstantTable
    function_names: Mapping[str, str]
    shared_workspace: str | None = None

    @property
    def main_name(self) -> str:
        """The function that calls the operators."""
        return f"{self.interface.prefix}___tvm_main__"

    def entry_file(self) -> str:
        """Return the file with the function that users call, and with the static workspace."""
        writer = Writer()
        writer.lines([f"/* {LICENCE} */", "#include <stddef.h>", f'#include "{self.interface.header_name}"', ""])
        if self._pool == POOL:
            writer.lines(pool_definition(f"static uint8_t {POOL}", self.plan.size))
        elif self._pool:
            writer.lines([f"extern uint8_t {self._pool}[];", ""])
        writer.lines([f"{self._main_head(named=False)};", ""])
        with writer.block(f"int32_t {self.interface.entry}({', '.join(self.interface.parameters)})"):
            self._entry_body(writer)
        return writer.text()

    @property
    def _pool(self) -> str | None:
        """The array that the entry hands to the main function, if it has to name one."""
        if not self.plan.size or self.interface.external_workspace:
            return None
        return self.shared_workspace or POOL

    def _entry_body(self, writer: Writer) -> None:
        structs = [("inputs", self.interface.inputs), ("outputs", self.interface.outputs)]
        pointers = [f"{name}->{tensor.field}" for name, group in structs for tensor in group]
        tests = [f"{name} == NULL" for name, group in structs if group]
        if self.interface.external_workspace:
            tests += ["workspace_pools == NULL"]
            pointers.append(f"workspace_pools->{POOL}")
        tests += [f"{pointer} == NULL" for pointer in pointers]
        if tests:
            with writer.block(f"if ({' || '.join(tests)})"):
                writer.line("return -1;")
        for name, group in structs:
            if not group:
                writer.line(f"(void){name};")
        if self._pool:
            pointers.append(self._pool)
        writer.line(f"return {self.main_name}({', '.join(pointers)});")

    def _main_head(self, *, named: bool) -> str:
        fields = [(_input(tensor.field), "void") for tensor in self.interface.inputs]
        fields += [(_output(tensor.field), "void") for tensor in self.interface.outputs]
        if self.plan.size:
            fields.append((_WORKSPACE, "uint8_t"))
        params = ", ".join(f"{kind} *{name}" if named else f"{kind} *" for name, kind in fields)
        return f"int32_t {self.main_name}({params or 'void'})"

    def main_prototype(self) -> str:
        """Return the declaration of the main function."""
        return f"{self._main_head(named=False)};"

    def main_function(self) -> str:
        """Return the function that calls every operator at its place in the workspace, and the hook around them."""
        pointers = {tensor.value.root: _input(tensor.field) for tensor in self.interface.inputs}
        pointers.update({tensor.value.root: _output(tensor.field) for tensor in self.interface.outputs})
        writer = Writer()
        if self.program.calls:
            writer.lines(_TRACE_HOOK)
        with writer.block(self._main_head(named=True)):
            for index, call in enumerate(self.program.calls):
                arguments = self._arguments(index, call, pointers)
                if call.nodes:
                    writer.line(f"/* {_nodes(call.nodes)} */")
                writer.line(f"MLFORGE_TRACE_BEGIN({index});")
                with writer.block(f"if ({self.function_names[call.kernel.name]}({', '.join(arguments)}) != 0)"):
                    writer.line("return -1;")
                output = arguments[len(call.kernel.params) - 1]
                writer.line(f"MLFORGE_TRACE_END({index}, {output}, {call.output.nbytes});")
            touched = {value.root for call in self.program.calls for value in (*call.inputs, call.output)}
            for root, name in pointers.items():
                if root not in touched:  # an input that nothing reads
                    writer.line(f"(void){name};")
            writer.line("return 0;")
        return writer.text()

    def _arguments(self, index: int, call: KernelCall, pointers: Mapping[Value, str]) -> list[str]:
        values = (*call.inputs, *call.constants, call.output)
        arguments = [
            self._address(value, buffer, pointers, is_output=buffer is call.kernel.output)
            for value, buffer in zip(values, call.kernel.params, strict=True)
        ]
        if call.kernel.scratch:
            offset = self.plan.scratch_offsets[index]
            arguments.append(f"{_WORKSPACE} + {offset}" if offset else _WORKSPACE)
        return arguments

    def _address(self, value: Value, buffer: Buffer, pointers: Mapping[Value, str], *, is_output: bool) -> str:
        root, start = value.root, value.root_start
        kind = scalar_type(buffer.dtype)
        const = "" if is_output else "const "
        if root in pointers:
            return f"({const}{kind} *)(({const}uint8_t *){pointers[root]} + {start})" if start else pointers[root]
        if root.kind == "constant":
            same = scalar_type(root.dtype) == scalar_type(buffer.dtype)
            symbol = self.constants.symbol(root)
            return symbol if same else f"(const {scalar_type(buffer.dtype)} *){symbol}"
        if root.kind != "intermediate":
            raise InternalError(f"'{value.name}' is an {root.kind} that the module does not have")
        offset = self.plan.offset(value)
        place = f"({_WORKSPACE} + {offset})" if offset else _WORKSPACE
        return place if kind == "uint8_t" and not offset else f"({const}{kind} *){place}"


def _input(field: str) -> str:
    return f"input_{field}"


def _output(field: str) -> str:
    return f"output_{field}"


def _nodes(nodes: Iterable[str]) -> str:
    return comment_text(", ".join(node[:100] for node in nodes)[:400])


def pool_definition(declared: str, size: int) -> list[str]:
    """Return the lines that define an array to work in, such as ``uint8_t pool``, for linker scripts to place."""
    return [
        "#if defined(__ELF__)",
        '#define MLF_POOL __attribute__((section(".bss.noinit.tvm"), aligned(64)))',
        "#else",
        "#define MLF_POOL __attribute__((aligned(64)))",
        "#endif",
        f"{declared}[{size}] MLF_POOL;",
        "",
    ]
