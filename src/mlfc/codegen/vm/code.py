"""A dynamic model in C: its kernels, and the main function that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlfc.codegen import c_files
from mlfc.codegen.c_host import WIDTH, c_function
from mlfc.codegen.c_interface import tensors
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.emit import (
    CodeSizes,
    GeneratedCode,
    banner,
    code_files,
    device_code,
    function_names,
    launched_kernels,
    operators_file,
)
from mlfc.codegen.external import external_parts
from mlfc.codegen.host.arguments import BYTES, at, constant_array
from mlfc.codegen.host.launch import CALL, LAUNCH
from mlfc.codegen.operators import kernel_functions
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.vm.device_launchers import device_launcher
from mlfc.codegen.vm.interface import VmInterface, vm_header
from mlfc.codegen.vm.main_function import KernelCode, MainFunction
from mlfc.codegen.vm.runtime import DROP_ALL, PARAMETERS, RUN, number
from mlfc.codegen.writer import PIECES
from mlfc.errors import InternalError
from mlfc.support.content import Data
from mlfc.support.dim_estimates import most
from mlfc.support.executable import Executable, release_symbol, reset_symbol, state_offsets
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, MEMMOVE, SIZE, VOID, Function, Name, pointer

INCLUDES = ("#include <mlfc_vm.h>", "#include <stddef.h>", "#include <string.h>")
_LAUNCH = "_launch"


def constants_of(unit: Unit) -> ConstantTable:
    """Return the constants of a module."""
    return ConstantTable(list(unit.program.constants), unit.module, packed=False)


def generate_vm_c(unit: Unit, shared: Shared) -> GeneratedCode:
    """Print a dynamic model in C."""
    constants, names = constants_of(unit), function_names(unit)
    functions = kernel_functions(unit, shared, names)
    on_device = launched_kernels(unit, names)
    includes = (*c_files.INCLUDES, *INCLUDES) if on_device else INCLUDES
    operators = operators_file(unit, constants, includes)
    if on_device:
        operators.declarations.append(c_files.launches((CALL, LAUNCH)))
    functions.write(operators)
    main = host_functions(unit, constants, {**names, **functions.names}, functions.arguments)
    own = [function for function in host.own_functions(main) if function not in (CALL, LAUNCH)]
    operators.functions.append(PIECES["vm_trace"])
    operators.functions += [c_function(function, WIDTH) for function in (*own, *main)]
    return vm_code(unit, constants, {**names, **functions.names}, code_files(unit, operators, constants))


def host_functions(
    unit: Unit, constants: ConstantTable, names: Mapping[str, str], last: Mapping[str, str]
) -> list[Function]:
    """Return the functions of a module that callers see, and the launchers of its kernels on a device.

    `names`: of the functions of kernels.
    `last`: of the variables whose addresses shared functions get behind the pointers.
    """
    if unit.executable is None:
        raise InternalError("a dynamic model has no description")
    launched = launched_kernels(unit, function_names(unit))
    launchers = {
        kernel.name: device_launcher(kernel, names[kernel.name] + _LAUNCH, found) for kernel, found in launched.items()
    }
    called = {**names, **{kernel: function.name for kernel, function in launchers.items()}}
    code = KernelCode(called, last, names)
    main = MainFunction(unit.program, unit.plan, unit.executable, constants, code).function()
    return [*launchers.values(), main, *_states(unit, constants), *_release(unit.executable)]


def _states(unit: Unit, constants: ConstantTable) -> Sequence[Function]:
    """Return the function that sets states to what they begin with."""
    if unit.executable is None or not unit.program.states:
        return ()
    state = Name(pointer(VOID), "state")
    body = host.Body()
    for offset, value in zip(state_offsets(unit.executable), unit.program.states, strict=False):
        first = value.initial
        place = at(state.cast(BYTES), offset)
        if first is None:
            index = Name(INT64, "index")
            with body.counting(index, number(0), index < number(value.before.nbytes)):
                body.assign(place[index], 0)
        elif value.before.nbytes:
            body.evaluate(MEMMOVE(place, constant_array(constants, first), number(value.before.nbytes).cast(SIZE)))
    body.returns(0)
    return (Function(reset_symbol(unit.module), INT32, (state,), body.stmts),)


def _release(executable: Executable) -> Sequence[Function]:
    """Return the function that frees outputs, where these have memory of their own."""
    if executable.is_bounded:
        return ()
    called, outputs, count = PARAMETERS[0], PARAMETERS[2], Name(INT32, "count")
    body = host.Body()
    run = body.declare("run", RUN)
    body.assign(run["host"], called)
    body.assign(run["error"], host.NULL)
    body.assign(run["used"], number(0))
    body.assign(run["turns"], number(0))
    body.returns(DROP_ALL(run.address, outputs, count))
    return (Function(release_symbol(executable.name), INT32, (called, outputs, count), body.stmts),)


def vm_code(unit: Unit, constants: ConstantTable, names: Mapping[str, str], files: Mapping[str, Data]) -> GeneratedCode:
    """Return a dynamic model: the printed code, and the parts that do not depend on its printer."""
    interface = interface_of(unit)
    values = (*unit.program.inputs, *unit.program.outputs)
    # of extents without a bound nothing is known
    io = sum(most(value.nbytes) or 0 for value in values)
    executable = interface.executable
    sizes = CodeSizes(executable.arena_bytes or 0, constants.nbytes, io)
    header = {f"include/{interface.header_name}": vm_header(interface).encode()}
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
        raise InternalError("a dynamic model has no description")
    return VmInterface(unit.module, *tensors(unit.program, of_vm=True), unit.executable, unit.quantization)
