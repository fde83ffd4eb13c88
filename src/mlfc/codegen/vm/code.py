"""C code of dynamic models: the description, the kernels, and the main function that calls them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mlfc.codegen import c_files, emit
from mlfc.codegen.c_host import WIDTH, c_function
from mlfc.codegen.c_interface import VmInterface, tensors, vm_header
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.device import DeviceKernel
from mlfc.codegen.emit import CodeSizes, GeneratedCode, banner, code_files, device_code, launched_kernels
from mlfc.codegen.external import external_parts
from mlfc.codegen.host import tvm
from mlfc.codegen.host.packed import CALL, IMPORTED, LAUNCH, launch_extents
from mlfc.codegen.host.tvm import BYTES, at, constant_array
from mlfc.codegen.operators import kernel_functions
from mlfc.codegen.unit import Shared, Unit
from mlfc.codegen.vm.dimension_code import Dimensions
from mlfc.codegen.vm.main_function import MainFunction
from mlfc.codegen.vm.runtime import PARAMETERS, RUN, mlf_drop_all, number
from mlfc.codegen.writer import PIECES
from mlfc.errors import InternalError
from mlfc.support.c_names import KEYWORDS, unique
from mlfc.support.content import Data
from mlfc.support.dim_estimates import most
from mlfc.support.dims import LARGEST, Dim, Symbol, symbols_of
from mlfc.support.executable import Executable, PartInfo, RunCode, VmValue, release_symbol, reset_symbol, state_offsets
from mlfc.support.module_info import SymbolInfo
from mlfc.support.tensor_info import BYTES as BYTES_PART
from mlfc.support.tensor_info import EXTENTS, Container, parts_of
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, MEMMOVE, SIZE, UINT8, VOID, Body, Expr, Function, Name, Number, Operand, pointer
from mlfc.tir.ir import MOST_GROUPS_ACROSS, PrimFunc
from mlfc.tir.program import Program, Value

INCLUDES = ("#include <mlfc_vm.h>", "#include <stddef.h>", "#include <string.h>")
_LAUNCH = "_launch"


def constants_of(unit: Unit) -> ConstantTable:
    """Return the constants of a module."""
    return ConstantTable(list(unit.program.constants), unit.module, packed=False)


def generate_vm_c(unit: Unit, shared: Shared) -> GeneratedCode:
    """Print a dynamic model in C."""
    constants, names = constants_of(unit), unit.function_names()
    functions = kernel_functions(unit, shared, names)
    on_device = launched_kernels(unit, names)
    includes = (*c_files.INCLUDES, *INCLUDES) if on_device else INCLUDES
    operators = emit.operators_file(unit, constants, includes)
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
    """Return the public functions of a module, and the launchers of its kernels on a device.

    `names`: names of the functions of kernels. `last`: names of the variables whose addresses shared functions get
    after the pointers.
    """
    if unit.executable is None:
        raise InternalError("a dynamic model has no description")
    launched = launched_kernels(unit, unit.function_names())
    launchers = {
        kernel.name: device_launcher(kernel, names[kernel.name] + _LAUNCH, found) for kernel, found in launched.items()
    }
    called = {**names, **{kernel: function.name for kernel, function in launchers.items()}}
    main = MainFunction(unit, unit.executable, constants, called, last, names).function()
    return [*launchers.values(), main, *_states(unit, constants), *_release(unit.executable)]


def _states(unit: Unit, constants: ConstantTable) -> Sequence[Function]:
    """Return the function that sets states to their initial values."""
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
    """Return the function that frees outputs, if these have separate memory."""
    if executable.is_bounded:
        return ()
    called, outputs, count = PARAMETERS[0], PARAMETERS[2], Name(INT32, "count")
    body = host.Body()
    run = body.declare("run", RUN)
    for place, value in (("host", called), ("error", host.NULL), ("used", number(0)), ("turns", number(0))):
        body.assign(run[place], value)
    body.returns(mlf_drop_all(run.address, outputs, count))
    return (Function(release_symbol(executable.name), INT32, (called, outputs, count), body.stmts),)


def vm_code(unit: Unit, constants: ConstantTable, names: Mapping[str, str], files: Mapping[str, Data]) -> GeneratedCode:
    """Return a dynamic model: the printed code, and the parts that do not depend on its printer."""
    executable = unit.executable
    if executable is None:
        raise InternalError("a dynamic model has no description")
    interface = VmInterface(unit.module, *tensors(unit.program, of_vm=True), executable, unit.quantization)
    values = (*unit.program.inputs, *unit.program.outputs)
    # the size of unbounded dimensions is unknown
    io = sum(most(value.nbytes) or 0 for value in values)
    sizes = CodeSizes(executable.arena_bytes or 0, constants.nbytes, io)
    header = {f"include/{interface.header_name}": vm_header(interface).encode()}
    device = device_code(unit, [kernel for group in launched_kernels(unit, names).values() for kernel in group])
    external = external_parts(unit, names, names, banner(str(unit.target)))
    header_name = interface.header_name
    return GeneratedCode({**header, **files}, names, sizes, external, header_name, device=device, executable=executable)


def executable_of(
    program: Program, arena_bytes: int | None, name: str, containers: Sequence[Container] = ()
) -> Executable:
    """Return the description of a module `name`; `containers` are those of its inputs and outputs."""
    names: dict[Symbol, str] = {}

    def described(value: Value, parts: Mapping[str, PartInfo]) -> VmValue:
        extents = tuple(
            extent if not isinstance(extent, Dim) else names.get(extent.symbol) if extent.symbol else None
            for extent in value.shape
        )
        return VmValue(value.name, value.dtype, extents, parts.get(value.name))

    for symbol in symbols_of([extent for value in program.inputs for extent in value.shape]):
        is_taken = symbol.name in names.values()
        names[symbol] = f"{symbol.name}_{len(names)}" if is_taken else symbol.name
    inputs, outputs = (_parts(containers, is_output=is_output) for is_output in (False, True))
    kinds = {kernel.device for kernel in program.kernels if kernel.device}
    return Executable(
        name,
        tuple(described(value, inputs) for value in program.inputs),
        tuple(described(value, outputs) for value in program.outputs),
        tuple(
            SymbolInfo(text, symbol.low, symbol.high if symbol.high < LARGEST else None)
            for symbol, text in names.items()
        ),
        tuple(described(state.before, {}) for state in program.states),
        tuple(state.after.name for state in program.states),
        arena_bytes,
        sum(kernel.external is None or kernel.external.module is None for kernel in program.kernels),
        tuple(sorted(kinds)),
    )


def _parts(containers: Sequence[Container], *, is_output: bool) -> dict[str, PartInfo]:
    """Return the parts of containers among the inputs or outputs, by their names."""
    found = {}
    for container in containers:
        details = {EXTENTS: container.kind, BYTES_PART: container.dtype}
        if container.is_output == is_output:
            for name, part in zip(container.parts, parts_of(container.kind), strict=True):
                found[name] = PartInfo(part, details.get(part), container.is_mixed and part == EXTENTS)
    return found


_RESERVED = ("imported", "data", "values", "codes", "lengths", *KEYWORDS)


def device_launcher(kernel: PrimFunc, name: str, launched: Sequence[DeviceKernel]) -> Function:
    """Return the function `name`, which launches the kernels of a device function."""
    body = Body()
    buffers = (*kernel.params, *kernel.scratch)
    places = {buffer: place for place, buffer in enumerate(buffers)}
    taken = {*_RESERVED, *(f"tensors_{number}" for number in range(len(launched)))}
    handles = [Name(tvm.ADDRESS, text) for text in unique((f"handle_{place}" for place in places.values()), taken)]
    taken |= {handle.name.lower() for handle in handles}

    def refuse(condition: Expr, _why: RunCode, *_values: Operand) -> None:
        body.fails_where(condition)

    dimensions = Dimensions(body, refuse, taken)
    numbers = [dimensions.symbol(symbol) for symbol in kernel.symbols]
    parameters = tuple(Name(INT32, dimensions.fresh(f"{number.name}_given")) for number in numbers)
    body.add(*(host.Declare(number, given) for number, given in zip(numbers, parameters, strict=True)))
    extents = [tuple(launch_extents(item).values()) for item in launched]
    sizes_of = [len(item.symbols) + len(lengths) for item, lengths in zip(launched, extents, strict=True)]
    most = max(len(item.arguments) + count for item, count in zip(launched, sizes_of, strict=True))
    chosen = [
        body.table(f"tensors_{index}", UINT8, [Number(UINT8, places[buffer]) for buffer in item.arguments])
        for index, item in enumerate(launched)
    ]
    imported = body.table("imported", IMPORTED, count=len(launched))
    data = body.array("data", tvm.ADDRESS, len(places))
    values, codes = body.array("values", tvm.VALUE, most), body.array("codes", host.INT, most)
    lengths = body.array("lengths", INT64, max(sizes_of))
    for place, handle in enumerate(handles):
        body.assign(data[place], handle)
    own = dict(zip(kernel.symbols, numbers, strict=True))
    for index, item in enumerate(launched):
        # the groups of a launch must be within the device's limits, and the number of work-items within int32
        limits = (LARGEST // prod(item.block), MOST_GROUPS_ACROSS, MOST_GROUPS_ACROSS)
        for extent, limit in zip(item.grid, limits, strict=True):
            if isinstance(extent, Dim):
                dimensions.require(extent, -(1 << 62), limit, RunCode.KERNEL)
        given = [own[symbol] for symbol in item.symbols] + [dimensions.of(extent) for extent in extents[index]]
        for place, value in enumerate(given):
            body.assign(lengths[place], value)
        what = (data, chosen[index], len(item.arguments), lengths, len(given), values, codes)
        body.requires(LAUNCH(item.name, imported[index].address, *what))
    body.returns(0)
    return Function(name, INT32, (*handles, *parameters), body.stmts, is_static=True)
