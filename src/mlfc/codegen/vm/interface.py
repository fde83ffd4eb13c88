"""What C programs need of a module of the virtual machine: a header, and the bytecode as an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mlfc.codegen.c_interface import InterfaceTensor, described, guarded
from mlfc.codegen.writer import Writer, comment_text
from mlfc.relay.ir import Quantization
from mlfc.support.bytecode import DTYPES, OPEN, Executable, state_offsets, work_bytes
from mlfc.support.c_names import unique
from mlfc.support.dim_estimates import most
from mlfc.tir.program import Program

_RESERVED = ("vm_work", "vm_bytecode", "vm_state", "extents")
"""Macros, and fields of test vectors, of these names have other meanings."""
_PER_LINE = 16


def code_symbol(module: str) -> str:
    """Return the name of the table that a module exports."""
    return f"tvmgen_{module}_vm_code"


def devices_symbol(module: str) -> str:
    """Return the name of the array with the device type of each kernel, which modules with a device's kernels have."""
    return f"tvmgen_{module}_vm_devices"


def bytecode_symbol(module: str) -> str:
    """Return the name of the array with the bytecode."""
    return f"tvmgen_{module}_vm_bytecode"


def vm_field_names(names: Iterable[str]) -> list[str]:
    """Return names for inputs and outputs in macros, all different."""
    return unique(names, _RESERVED)


def vm_tensors(program: Program) -> tuple[tuple[InterfaceTensor, ...], tuple[InterfaceTensor, ...]]:
    """Return inputs and outputs of a program with names for macros made from their own, all different."""
    values = [*program.inputs, *program.outputs]
    names = vm_field_names(value.name for value in values)
    named = tuple(InterfaceTensor(name, value) for name, value in zip(names, values, strict=True))
    return named[: len(program.inputs)], named[len(program.inputs) :]


@dataclass(frozen=True, eq=False)
class VmInterface:
    """The C interface of a module."""

    module: str
    inputs: tuple[InterfaceTensor, ...]
    outputs: tuple[InterfaceTensor, ...]
    executable: Executable
    bytecode: bytes
    quantization: Mapping[str, Quantization]

    @property
    def header_name(self) -> str:
        """The header's file name."""
        return f"tvmgen_{self.module}.h"

    @property
    def macro_prefix(self) -> str:
        """The start of every macro of the module."""
        return f"tvmgen_{self.module}".upper()


def vm_interface(
    program: Program, executable: Executable, bytecode: bytes, module: str, quantization: Mapping[str, Quantization]
) -> VmInterface:
    """Return the C interface of a module, its tensors with names made from their own."""
    inputs, outputs = vm_tensors(program)
    return VmInterface(module, inputs, outputs, executable, bytecode, quantization)


def bytecode_file(interface: VmInterface, first: str) -> str:
    """Return the C file with the bytecode; `first` are its first lines."""
    writer = Writer()
    writer.lines([f'{first}#include "{interface.header_name}"', ""])
    data = interface.bytecode
    with writer.block(f"const uint8_t {bytecode_symbol(interface.module)}[{len(data)}] =", "};"):
        for at in range(0, len(data), _PER_LINE):
            writer.line(", ".join(map(str, data[at : at + _PER_LINE])) + ",")
    return writer.text()


def vm_header(interface: VmInterface) -> str:
    """Return the header's text."""
    prefix, module = interface.macro_prefix, interface.module
    size = len(interface.bytecode)
    lines = [
        *_extents(interface),
        *_tensors(interface, "Input", interface.inputs),
        *_tensors(interface, "Output", interface.outputs),
        f"/*! \\brief What module {module} does, as the interpreter of mlfc_vm.h takes it */",
        f"#define {prefix}_VM_BYTECODE_SIZE {size}",
        f"extern const uint8_t {bytecode_symbol(module)}[{prefix}_VM_BYTECODE_SIZE];",
        "",
        f"/*! \\brief The kernels and constants of module {module} */",
        f"extern const mlfc_vm_code {code_symbol(module)};",
        *_work(interface),
        *_states(interface),
    ]
    # of the C runtime's headers, wherever they are
    return guarded(prefix, lines, ['#include "mlfc_vm_code.h"', ""])


def _extents(interface: VmInterface) -> list[str]:
    if not interface.executable.symbols:
        return []
    lines = ["/*", f" * Open extents of module {interface.module}:"]
    for symbol in interface.executable.symbols:
        high = f"to {symbol.high}" if symbol.high < OPEN else "without a bound"
        lines.append(f" * {comment_text(symbol.name[:200])} from {symbol.low} {high}")
    return [*lines, " */", ""]


def _tensors(interface: VmInterface, kind: str, group: Sequence[InterfaceTensor]) -> list[str]:
    lines = []
    for tensor in group:
        value, macro = tensor.value, f"{interface.macro_prefix}_{tensor.field.upper()}"
        nbytes = most(value.nbytes)
        facts = "dtype and rank as mlfc_vm_tensor has them" + (", its most bytes" if nbytes is not None else "")
        lines += [
            f"/*! \\brief {kind} {described(value, interface.quantization)}; {facts} */",
            f"#define {macro}_DTYPE {DTYPES.index(value.dtype)}",
            f"#define {macro}_RANK {len(value.shape)}",
            *([] if nbytes is None else [f"#define {macro}_SIZE {nbytes}"]),
            "",
        ]
    return lines


def _states(interface: VmInterface) -> list[str]:
    executable = interface.executable
    if not executable.states:
        return []
    *offsets, end = state_offsets(executable)
    lines = ["", "/*", " * What the module keeps from run to run, in the state of mlfc_vm_host:"]
    for value, offset in zip(executable.kept, offsets, strict=True):
        shape = ", ".join(map(str, value.extents))
        lines.append(f" * {comment_text(value.name[:200])}: {value.dtype}[{shape}] at byte {offset}")
    return [*lines, " */", f"#define {interface.macro_prefix}_VM_STATE_SIZE {end}"]


def _work(interface: VmInterface) -> list[str]:
    nbytes = work_bytes(interface.executable)
    if nbytes is None:
        return []
    return [
        "",
        f"/*! \\brief Bytes that mlfc_vm_run needs to run module {interface.module}, enough on every machine */",
        f"#define {interface.macro_prefix}_VM_WORK_SIZE {nbytes}",
    ]
