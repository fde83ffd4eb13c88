"""A module of the virtual machine in C: its kernels, what launches them, and the table that its bytecode refers to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlfc.codegen import c_files
from mlfc.codegen.c_host import WIDTH, c_function
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import (
    CodeSizes,
    GeneratedCode,
    banner,
    blob_files,
    device_code,
    function_names,
    launched_kernels,
    level_choice,
    level_paths,
)
from mlfc.codegen.external import external_parts
from mlfc.codegen.host.launch import CALL, LAUNCH
from mlfc.codegen.operators import OperatorsFile, kernel_functions
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.vm.device_launchers import device_launcher
from mlfc.codegen.vm.interface import (
    VmInterface,
    bytecode_file,
    code_symbol,
    devices_symbol,
    vm_header,
    vm_interface,
)
from mlfc.codegen.vm.launchers import launcher
from mlfc.codegen.writer import Writer
from mlfc.errors import InternalError
from mlfc.support.bytecode import encode
from mlfc.support.content import Data
from mlfc.support.dim_estimates import most
from mlfc.support.platforms import TYPE_CODES
from mlfc.tir.ir import PrimFunc

INCLUDE = "#include <mlfc_vm_code.h>"
_LAUNCH = "_launch"


def launch_names(names: Mapping[str, str]) -> dict[str, str]:
    """Return the names of the functions that launch kernels."""
    return {kernel: name + _LAUNCH for kernel, name in names.items()}


def kernel_devices(unit: Unit) -> list[int]:
    """Return DLPack's type of the device of each kernel; none where all are the host's."""
    kinds = [kernel.device for kernel in unit.kernels_in_code]
    return [TYPE_CODES[kind or "cpu"] for kind in kinds] if any(kinds) else []


def constants_of(unit: Unit) -> ConstantTable:
    """Return the constants of a module, in the order of its bytecode."""
    return ConstantTable(list(unit.program.constants), unit.module, packed=False)


def generate_vm_c(unit: Unit, shared: Shared) -> GeneratedCode:
    """Print a module of the virtual machine in C."""
    constants, names = constants_of(unit), function_names(unit)
    functions = kernel_functions(unit, shared, names)
    launching = launch_names(names)

    def launched(kernel: PrimFunc) -> str:
        return c_function(launcher(kernel, launching[kernel.name], functions.names[kernel.name]), WIDTH)

    on_device = launched_kernels(unit, names)
    includes = (*c_files.INCLUDES, INCLUDE) if on_device else (INCLUDE,)
    operators = OperatorsFile(unit.contracts, includes, levels=unit.levels)
    if on_device:
        operators.declarations.append(c_files.launches((CALL, LAUNCH)))
    operators.needs.math = constants.uses_math
    operators.declarations += [*level_choice(unit), "\n".join(constants.declarations())]
    functions.write(operators, static=True, after=launched)
    for kernel, kernels in on_device.items():
        operators.functions.append(c_function(device_launcher(kernel, launching[kernel.name], kernels), WIDTH))
    operators.functions.append(_table(unit, constants, launching))
    first, path = banner(unit.target_text), f"src/{unit.module}_lib1.c"
    files: dict[str, Data] = {
        path: (first + operators.text()).encode(),
        **operators.level_files(unit.module, first),
        **blob_files(constants, f"src/{unit.module}_lib2.S", first),
    }
    code = vm_code(unit, constants, {**names, **functions.names}, files)
    files = {f"src/{unit.module}_lib0.c": _bytecode(unit).encode(), **code.files}
    return replace(code, files=files, levels=level_paths(unit))


def vm_code(unit: Unit, constants: ConstantTable, names: Mapping[str, str], files: Mapping[str, Data]) -> GeneratedCode:
    """Return a module of the virtual machine: the printed code, and the parts that do not depend on its printer."""
    interface = interface_of(unit)
    values = (*unit.program.inputs, *unit.program.outputs)
    # of extents without a bound nothing is known
    io = sum(most(value.nbytes) or 0 for value in values)
    sizes = CodeSizes(max(0, interface.executable.arena_bytes), constants.nbytes, io)
    header = {f"include/{interface.header_name}": vm_header(interface).encode()}
    executable = interface.executable
    device = device_code(unit, [kernel for group in launched_kernels(unit, names).values() for kernel in group])
    return GeneratedCode(
        {**header, **files},
        interface.header_name,
        None,
        names,
        sizes,
        False,
        external=external_parts(unit, names, names, banner(unit.target_text)),
        device=device,
        executable=executable,
    )


def interface_of(unit: Unit) -> VmInterface:
    """Return the C interface of a module."""
    if unit.executable is None:
        raise InternalError("a module of the virtual machine has no bytecode")
    data = encode(unit.executable)
    return vm_interface(unit.program, unit.executable, data, unit.module, unit.quantization)


def _bytecode(unit: Unit) -> str:
    return bytecode_file(interface_of(unit), banner(unit.target_text))


def _table(unit: Unit, constants: ConstantTable, launching: Mapping[str, str]) -> str:
    program, writer, in_code = unit.program, Writer(), unit.kernels_in_code
    if in_code:
        with writer.block(f"static const mlfc_vm_kernel_entry kernels[{len(in_code)}] =", "};"):
            for kernel in in_code:
                reads = len(kernel.inputs) + len(kernel.constants)
                buffers = len(kernel.params) + len(kernel.workspaces)
                writer.line(f"{{{launching[kernel.name]}, {buffers}, {reads}, {len(kernel.symbols)}}},")
    if program.constants:
        with writer.block(f"static const mlfc_vm_buffer constants[{len(program.constants)}] =", "};"):
            for value in program.constants:
                writer.line(f"{{(uint8_t *){constants.symbol(value)}, {value.nbytes}}},")
    devices = kernel_devices(unit)
    if devices:
        declared = f"const uint32_t {devices_symbol(unit.module)}[{len(devices)}]"
        writer.lines([f"extern {declared};", f"{declared} = {{{', '.join(map(str, devices))}}};"])
    kernels = f"{len(in_code)}, {'kernels' if in_code else '0'}"
    held = f"{len(program.constants)}, {'constants' if program.constants else '0'}"
    writer.line(f"const mlfc_vm_code {code_symbol(unit.module)} = {{{kernels}, {held}}};")
    return writer.text()
