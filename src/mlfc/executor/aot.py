"""The ahead-of-time executor: C functions that call a module's operators in order."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mlfc.codegen.c_interface import LICENCE, Interface, InterfaceTensor
from mlfc.codegen.c_types import scalar_type
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.writer import Writer, comment_text
from mlfc.errors import InternalError
from mlfc.memory import Plan, PoolSpan
from mlfc.memory.pools import DEFAULT_POOL, pool_array, pool_section
from mlfc.tir.ir import Buffer, KernelCall, Program, Value

ALIGNMENT = 64
_WORKSPACE = "workspace"
_POOLS = "workspace_pools"
_WORD = re.compile(r"\w+")
# the header, not the code, says what tracing means, so that one hook serves profilers on the host and on boards
_TRACE_HOOK = [
    "/* with MLFC_TRACE defined, a header sees each operator begin, and end with its output; index is its place */",
    "#ifdef MLFC_TRACE",
    '#include "mlfc_trace.h"',
    "#else",
    "#define MLFC_TRACE_BEGIN(index) ((void)0)",
    "#define MLFC_TRACE_END(index, data, nbytes) ((void)0)",
    "#endif",
    "",
]


@dataclass(frozen=True, eq=False)
class AotMain:
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
    last_arguments : mapping of str to str
        What functions that several kernels share take behind the pointers, by kernel.
    """

    program: Program
    plan: Plan
    interface: Interface
    constants: ConstantTable
    function_names: Mapping[str, str]
    shared_workspace: str | None = None
    last_arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_name(self) -> str:
        """The function that calls the operators."""
        return main_function_name(self.interface.prefix)

    def entry_file(self) -> str:
        """Return the file with the functions that users call, and with the static workspace."""
        writer = Writer()
        writer.lines([f"/* {LICENCE} */", "#include <stddef.h>", f'#include "{self.interface.header_name}"', ""])
        if self.shared_workspace and self.plan.pools:
            writer.lines([f"extern uint8_t {self.shared_workspace}[];", ""])
        elif not self.interface.external_workspace:
            for pool in self.plan.pools:
                writer.lines(pool_definition(f"static uint8_t {pool_array(pool.name)}", pool.nbytes, pool.name))
        writer.lines([f"{self._main_head(named=False)};", ""])
        if self.interface.workspace_io:
            self._mappers(writer)
        with writer.block(f"int32_t {self.interface.entry}({', '.join(self.interface.parameters) or 'void'})"):
            self._entry_body(writer)
        return writer.text()

    def _pool_pointer(self, pool: PoolSpan) -> str:
        """Return what the functions of the entry's file know a pool of the workspace by."""
        if self.interface.external_workspace:
            return f"{_POOLS}->{pool.name}"
        return self.shared_workspace or pool_array(pool.name)

    def _mappers(self, writer: Writer) -> None:
        """Write the functions that say where inputs and outputs lie in the workspace."""
        interface = self.interface
        for function, kind, group in zip(
            interface.mappers, ("inputs", "outputs"), (interface.inputs, interface.outputs), strict=True
        ):
            struct = f"struct {interface.prefix}_{kind}"
            with writer.block(f"{struct} {function}({', '.join(interface.pool_parameters) or 'void'})"):
                writer.line(f"{struct} {kind};")
                for tensor in group:
                    writer.line(f"{kind}.{tensor.field} = {self._mapped(tensor)};")
                if not group:
                    writer.line(f"{kind}.unused = NULL;")
                if interface.pool_parameters and not (group and interface.external_workspace):
                    writer.line(f"(void){_POOLS};")
                writer.line(f"return {kind};")
            writer.line()

    def _mapped(self, tensor: InterfaceTensor) -> str:
        pool, offset = self.plan.place(self.plan.offset(tensor.value))
        pointer = self._pool_pointer(pool)
        if not offset:
            return pointer
        return f"(uint8_t *){pointer} + {offset}" if self.interface.external_workspace else f"{pointer} + {offset}"

    def _entry_body(self, writer: Writer) -> None:
        structs = [("inputs", self.interface.inputs), ("outputs", self.interface.outputs)]
        if self.interface.workspace_io:
            structs = []
        pointers = [f"{name}->{tensor.field}" for name, group in structs for tensor in group]
        given = [f"{_POOLS}->{name}" for name in self.interface.caller_pools]
        own = [] if self.interface.external_workspace else [self._pool_pointer(pool) for pool in self.plan.pools]
        tests = [f"{name} == NULL" for name, group in structs if group]
        if given:
            tests.append(f"{_POOLS} == NULL")
        tests += [f"{pointer} == NULL" for pointer in (*pointers, *given)]
        if tests:
            with writer.block(f"if ({' || '.join(tests)})"):
                writer.line("return -1;")
        for name, group in structs:
            if not group:
                writer.line(f"(void){name};")
        writer.line(f"return {self.main_name}({', '.join((*pointers, *own, *given))});")

    def _main_head(self, *, named: bool) -> str:
        fields = [(name, "void") for name in self._tensor_parameters.values()]
        fields += [(_pool_parameter(pool.name), "uint8_t") for pool in self.plan.pools]
        fields += [(_loaded_parameter(pool.name), "const uint8_t") for pool in self.interface.constant_pools]
        params = ", ".join(f"{kind} *{name}" if named else f"{kind} *" for name, kind in fields)
        return f"int32_t {self.main_name}({params or 'void'})"

    @property
    def _tensor_parameters(self) -> dict[Value, str]:
        """The parameters of the main function for inputs and outputs that the caller passes, by what they hold."""
        if self.interface.workspace_io:
            return {}
        named = {tensor.value.root: _input(tensor.field) for tensor in self.interface.inputs}
        return {**named, **{tensor.value.root: _output(tensor.field) for tensor in self.interface.outputs}}

    def main_prototype(self) -> str:
        """Return the declaration of the main function."""
        return f"{self._main_head(named=False)};"

    def main_function(self) -> str:
        """Return the function that calls every operator at its place in the workspace, and the hook around them."""
        pointers = self._tensor_parameters
        writer = Writer()
        if self.program.calls:
            writer.lines(_TRACE_HOOK)
        with writer.block(self._main_head(named=True)):
            touched: set[str] = set()
            for index, call in enumerate(self.program.calls):
                arguments = self._arguments(index, call, pointers)
                touched.update(_WORD.findall(" ".join(arguments)))
                if call.nodes:
                    writer.line(f"/* {_nodes(call.nodes)} */")
                writer.line(f"MLFC_TRACE_BEGIN({index});")
                with writer.block(f"if ({self.function_names[call.kernel.name]}({', '.join(arguments)}) != 0)"):
                    writer.line("return -1;")
                output = arguments[len(call.kernel.params) - 1]
                writer.line(f"MLFC_TRACE_END({index}, {output}, {call.output.nbytes});")
            for name in (*pointers.values(), *(_pool_parameter(pool.name) for pool in self.plan.pools)):
                if name not in touched:  # an input that nothing reads, or a pool that holds nothing else
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
            pool, offset = self.plan.place(self.plan.scratch_offsets[index])
            name = _pool_parameter(pool.name)
            arguments.append(f"{name} + {offset}" if offset else name)
        if call.kernel.name in self.last_arguments:
            arguments.append(self.last_arguments[call.kernel.name])
        return arguments

    def _address(self, value: Value, buffer: Buffer, pointers: Mapping[Value, str], *, is_output: bool) -> str:
        root, start = value.root, value.root_start
        kind = scalar_type(buffer.dtype)
        const = "" if is_output else "const "
        if root in pointers:
            return f"({const}{kind} *)(({const}uint8_t *){pointers[root]} + {start})" if start else pointers[root]
        if root.kind == "constant":
            loaded = self.constants.loaded_place(root)
            if loaded is not None:
                return f"(const {scalar_type(buffer.dtype)} *)({_loaded_parameter(loaded[0])} + {loaded[1]})"
            same = scalar_type(root.dtype) == scalar_type(buffer.dtype)
            symbol = self.constants.symbol(root)
            return symbol if same else f"(const {scalar_type(buffer.dtype)} *){symbol}"
        if root.kind != "intermediate":
            raise InternalError(f"'{value.name}' is an {root.kind} that the module does not have")
        pool, offset = self.plan.place(self.plan.offset(value))
        name = _pool_parameter(pool.name)
        place = f"({name} + {offset})" if offset else name
        return place if kind == "uint8_t" and not offset else f"({const}{kind} *){place}"


def main_function_name(prefix: str) -> str:
    """Return the name, in TVM's words, of the function that calls a module's operators."""
    return f"{prefix}___tvm_main__"


def _input(field: str) -> str:
    return f"input_{field}"


def _output(field: str) -> str:
    return f"output_{field}"


def _pool_parameter(name: str) -> str:
    return _WORKSPACE if name == DEFAULT_POOL else f"pool_{name}"


def _loaded_parameter(name: str) -> str:
    return f"constants_{name}"


def _nodes(nodes: Iterable[str]) -> str:
    return comment_text(", ".join(node[:100] for node in nodes)[:400])


def pool_definition(declared: str, size: int, pool: str = DEFAULT_POOL) -> list[str]:
    """Return the lines that define an array to work in, such as ``uint8_t pool``, for linker scripts to place."""
    macro = "MLF_POOL" if pool == DEFAULT_POOL else f"MLF_POOL_{pool.upper()}"
    return [
        "#if defined(__ELF__)",
        f'#define {macro} __attribute__((section("{pool_section(pool)}"), aligned(64)))',
        "#else",
        f"#define {macro} __attribute__((aligned(64)))",
        "#endif",
        f"{declared}[{size}] {macro};",
        "",
    ]
