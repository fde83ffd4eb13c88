"""From planned steps to bytecode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mlfc.codegen.unit import kernels_in_code, names_of_functions
from mlfc.codegen.vm.lists import ListAssembler
from mlfc.memory.liveness import is_last_use
from mlfc.memory.plan import Plan, Storage
from mlfc.support import bytecode as bc
from mlfc.support.containers import BYTES, EXTENTS, Container, parts_of
from mlfc.support.dim_walk import walked
from mlfc.support.dims import Dim, Extent, Symbol, bounds, maximum, symbols_of
from mlfc.support.platforms import TYPE_CODES
from mlfc.tir.program import (
    Assign,
    Branch,
    BranchOnSymbols,
    CheckBounds,
    CheckDimension,
    Define,
    Instruction,
    Jump,
    KernelCall,
    Label,
    ListOperation,
    Program,
    SetSymbols,
    Value,
    sources_of,
)

_OPERATIONS = {"+": "add", "*": "mul", "//": "floordiv", "%": "floormod", "max": "max", "min": "min"}


def assemble(program: Program, plan: Plan, name: str, containers: Sequence[Container] = ()) -> bc.Executable:
    """Return the bytecode of a planned model; `name` is the module's, `containers` are made of inputs and outputs.

    Kernels and constants are numbered in the order of the program; what a runtime module of an external code generator
    computes is no kernel, and called by name.
    """
    return _Assembler(program, plan, name, containers).run()


class _Numbers:
    """Integers that are in registers: each expression of symbols is computed once, where it is known to be computed.

    What is computed behind a label may have been jumped over elsewhere, so it is forgotten at the next one.
    """

    def __init__(self, main: bc.FunctionBuilder) -> None:
        self._main = main
        self._symbols: dict[Symbol, bc.IntegerRegister] = {}
        self._computed: dict[tuple[str, Any, Any], tuple[bc.IntegerRegister, frozenset[Symbol]]] = {}

    def register(self, symbol: Symbol) -> bc.IntegerRegister:
        """Return the register of a symbol."""
        if symbol not in self._symbols:
            self._symbols[symbol] = self._main.integer_register()
        return self._symbols[symbol]

    def changed(self, symbol: Symbol) -> None:
        """Forget what was computed from a symbol."""
        self._computed = {key: item for key, item in self._computed.items() if symbol not in item[1]}

    def forget(self) -> None:
        """Forget everything that was computed."""
        self._computed.clear()

    def of(self, extent: Extent) -> bc.Integer:
        """Return an extent as an operand."""

        def leaf(value: int | Symbol) -> tuple[bc.Integer, frozenset[Symbol]]:
            return (self.register(value), frozenset((value,))) if isinstance(value, Symbol) else (value, frozenset())

        def apply(op: str, a: Any, b: Any) -> tuple[bc.Integer, frozenset[Symbol]]:
            key = (op, a[0], b[0])
            if key not in self._computed:
                symbols = a[1] | b[1]
                self._computed[key] = (self._main.compute(_OPERATIONS[op], a[0], b[0]), symbols)
            return self._computed[key]

        found: bc.Integer = walked(extent, leaf, apply)[0]
        return found


class _Assembler:
    def __init__(self, program: Program, plan: Plan, name: str, containers: Sequence[Container]) -> None:
        self._steps = program.instructions
        self._program = program
        self._plan = plan
        self._builder = bc.ExecutableBuilder(name)
        open_extents: dict[Symbol, bc.OpenExtent] = {}
        for value in program.parameters:
            for symbol in symbols_of(value.shape):
                if symbol not in open_extents:
                    open_extents[symbol] = self._builder.symbol(symbol.name, symbol.low, symbol.high)
        inputs, outputs = (_parts(containers, is_output=is_output) for is_output in (False, True))
        for value in program.parameters:
            extents = [_declared(item, open_extents) for item in value.shape]
            self._builder.input(value.name, value.dtype, extents, inputs.get(value.name))
        for value in program.results:
            extents = [_declared(item, open_extents) for item in value.shape]
            self._builder.output(value.name, value.dtype, extents, outputs.get(value.name))
        self._kernels = {
            kernel.name: self._builder.kernel(
                kernel.name,
                len(kernel.params) + len(kernel.workspaces),
                len(kernel.inputs) + len(kernel.constants),
                len(kernel.symbols),
            )
            for kernel in kernels_in_code(program)
        }
        self._functions = names_of_functions(program, name)
        self._constants = {
            value: self._builder.constant(value.name, value.dtype, value.shape) for value in program.constants
        }
        for state in program.states:
            self._builder.state(None if state.initial is None else self._constants[state.initial])
        self._main = self._builder.function("main", len(program.parameters), len(program.results))
        self._numbers = _Numbers(self._main)
        self._tensors: dict[Value, bc.TensorRegister] = dict(
            zip(program.parameters, self._main.parameters, strict=True)
        )
        self._lists: dict[Value, bc.ListRegister] = {}
        self._has_device = any(kernel.device for kernel in program.kernels)
        self._list_writer = ListAssembler(self._main, self._numbers.register, is_elsewhere=self._has_device)
        self._storages: dict[Storage, bc.StorageRegister] = {}
        # copies of tensors on devices, until their registers may hold others
        self._copies: dict[tuple[bc.Tensor, str | None], bc.TensorRegister] = {}
        self._labels: dict[Label, bc.Label] = {}
        self._last_reads = {value.root: at for at, step in enumerate(self._steps) for value in sources_of(step)}
        self._places: dict[Label, int] = {step: at for at, step in enumerate(self._steps) if isinstance(step, Label)}

    def run(self) -> bc.Executable:
        begin = next((at for at, step in enumerate(self._steps) if not _binds_inputs(step)), 0)
        for at, step in enumerate(self._steps):
            if at == begin and not isinstance(step, BranchOnSymbols):
                self._take_storages(0)
            self._step(step, at)
            for value in dict.fromkeys(value.root for value in sources_of(step)):
                if self._last_reads[value] == at and value in self._tensors:
                    self._forget_copies(self._tensors[value])
            if isinstance(step, Label):
                self._take_storages(at)
            elif at == begin:
                self._take_storages(0)
        return self._builder.build(self._plan.size if self._plan.is_bounded else -1)

    def _take_storages(self, part: int) -> None:
        """Write what takes the storages that are there from the start of a part of the run."""
        for slot in self._plan.storages:
            if slot.is_lasting and slot.part == part and slot not in self._storages:
                self._storage(slot)

    def _storage(self, slot: Storage) -> bc.StorageRegister:
        """Write what takes a storage."""
        if slot not in self._storages:
            self._storages[slot] = self._main.storage_register()
        device = TYPE_CODES[slot.device or "cpu"]
        # storage is taken for branches and loops that do not run, too, whose sizes may be negative
        nbytes = slot.nbytes if bounds(slot.nbytes)[0] >= 0 else maximum(slot.nbytes, 0)
        return self._main.storage(self._numbers.of(nbytes), slot.offset, self._storages[slot], device=device)

    def _step(self, step: Instruction, at: int) -> None:
        if isinstance(step, Label):
            self._numbers.forget()
            self._forget_copies()
            self._main.place(self._label(step))
        elif isinstance(step, Jump):
            if self._places[step.label] != at + 1:
                self._main.jump(self._label(step.label))
        elif isinstance(step, Branch):
            self._main.branch(self._main.element(self._here(step.condition), 0), self._label(step.otherwise))
        elif isinstance(step, BranchOnSymbols):
            for symbol, value in step.values:
                is_equal = self._main.compute("eq", self._numbers.register(symbol), value)
                self._main.branch(is_equal, self._label(step.otherwise))
        elif isinstance(step, Define):
            self._define(step)
        elif isinstance(step, SetSymbols):
            self._rebind(step)
        elif isinstance(step, CheckBounds):
            extent = self._numbers.of(step.extent)
            self._main.require_range(extent, step.symbol.low, step.symbol.high, str(step.symbol))
        elif isinstance(step, CheckDimension):
            found = self._main.extent(self._tensor(step.source), step.axis)
            self._main.require_equal(found, self._numbers.of(step.extent), _axis(step.source, step.axis, step.extent))
        elif isinstance(step, KernelCall):
            self._invoke(step)
        elif isinstance(step, Assign):
            self._assign(step)
        elif isinstance(step, ListOperation):
            self._list_step(step, at)
        else:
            self._main.return_([self._typed(value) for value in step.outputs])

    def _label(self, label: Label) -> bc.Label:
        if label not in self._labels:
            self._labels[label] = self._main.label()
        return self._labels[label]

    def _define(self, step: Define) -> None:
        register = self._numbers.register(step.symbol)
        if step.axis is None:
            self._main.element(self._here(step.source), 0, register)
        else:
            self._main.extent(self._tensor(step.source), step.axis, register)
        self._checked(step.symbol)

    def _rebind(self, step: SetSymbols) -> None:
        values = [self._numbers.of(extent) for extent in step.extents]
        registers = [self._numbers.register(symbol) for symbol in step.symbols]
        # what is read after it was written is read before
        for index, value in enumerate(values):
            if isinstance(value, bc.IntegerRegister) and value in registers[:index]:
                values[index] = self._main.integer(value)
        for symbol, register, value in zip(step.symbols, registers, values, strict=True):
            self._main.integer(value, register)
            self._numbers.changed(symbol)

    # tensors

    def _tensor(self, value: Value) -> bc.Tensor:
        """Return what holds the bytes of a value; its extents may be those of another form."""
        root = value.root
        if root in self._constants:
            return self._constants[root]
        if root not in self._tensors:
            self._tensors[root] = self._main.tensor_register()
        return self._tensors[root]

    def _forget_copies(self, of: bc.Tensor | None = None) -> None:
        """Drop the copies of a register on other devices, or all of them."""
        for key in [key for key in self._copies if of is None or key[0] == of]:
            copy = self._copies.pop(key)
            if isinstance(key[0], bc.TensorRegister):  # the run keeps those of constants
                self._main.drop(copy)

    def _on(self, tensor: bc.Tensor, value: Value, device: str | None) -> bc.Tensor:
        """Return a tensor on a device, a copy if it must be; where variables and inputs are, the run knows."""
        root = value.root
        is_there = root.device == device and root.kind == "intermediate"
        if not self._has_device or is_there or (root.kind == "constant" and device is None):
            return tensor
        key = (tensor, device)
        if key not in self._copies:
            self._copies[key] = self._main.to_device(tensor, TYPE_CODES[device or "cpu"])
        return self._copies[key]

    def _here(self, value: Value) -> bc.Tensor:
        """Return what holds the bytes of a value in the host's memory."""
        return self._on(self._tensor(value), value, None)

    def _typed(self, value: Value) -> bc.Tensor:
        """Return a tensor with the extents of a value."""
        root = value.root
        if value.shape == root.shape and value.dtype == root.dtype and value.is_whole:
            return self._tensor(value)
        return self._main.view(self._tensor(value), value.root_start, value.dtype, self._extents(value))

    def _extents(self, value: Value) -> list[bc.Integer]:
        return [self._numbers.of(extent) for extent in value.shape]

    def _made(self, value: Value, slot: Storage, into: bc.TensorRegister | None = None) -> bc.TensorRegister:
        """Write what makes a tensor in a storage."""
        storage = self._storages[slot] if slot.is_lasting else self._storage(slot)
        if into is not None:
            self._forget_copies(into)
        return self._main.tensor(storage, 0, value.dtype, self._extents(value), into)

    def _invoke(self, step: KernelCall) -> None:
        call, root = step, step.output.root
        register = self._tensor(call.output)
        assert isinstance(register, bc.TensorRegister)
        self._made(root, self._plan.values[root], register)
        if call.kernel.external is not None and call.kernel.external.module is not None:
            # a runtime module wants tensors of the shapes that it states
            given = [self._on(self._typed(value), value, None) for value in call.inputs]
            self._main.invoke_packed(self._functions[call.kernel.name], [*given, register])
            return
        device = call.kernel.device
        read = (*call.inputs, *call.constants)
        buffers: list[bc.Buffer] = [self._on(self._operand(value), value, device) for value in read]
        buffers.append(register)
        for slot in self._plan.scratch.get(step, ()):
            buffers.append(self._storages[slot] if slot.is_lasting else self._storage(slot))
        numbers = [self._numbers.of(extent) for extent in call.numbers]
        self._main.invoke(self._kernels[call.kernel.name], buffers, numbers)

    def _operand(self, value: Value) -> bc.Tensor:
        return self._typed(value) if value.root_start else self._tensor(value)

    def _assign(self, step: Assign) -> None:
        pairs = list(zip(step.variables, step.sources, strict=True))
        for variable, value in pairs:
            if variable.kind == "list" and self._list(variable) != self._list(value):
                self._main.list_move(self._list(value), self._list(variable))
        tensors = [pair for pair in pairs if pair[0].kind != "list"]
        if len(tensors) < len(pairs):
            step = Assign(tuple(pair[0] for pair in tensors), tuple(pair[1] for pair in tensors))
        sources = [self._typed(source) for source in step.sources]
        if self._plan.is_bounded:
            self._copied(step, sources)
            return
        targets = [self._tensor(variable) for variable in step.variables]
        for target in targets:
            self._forget_copies(target)
        for target, source in zip(targets, sources, strict=True):
            if target != source:
                assert isinstance(target, bc.TensorRegister)
                self._main.move(source, target)

    def _copied(self, step: Assign, sources: list[bc.Tensor]) -> None:
        """Write copies of the sources into the variables' own places."""
        for variable, value, tensor in zip(step.variables, step.sources, sources, strict=True):
            register = self._tensor(variable)
            assert isinstance(register, bc.TensorRegister)
            # with the extents of the source: the symbols of its own are bound afterwards
            self._made(value, self._plan.values[variable.root], register)
            self._main.copy(register, tensor)

    # lists

    def _list(self, value: Value) -> bc.ListRegister:
        if value not in self._lists:
            self._lists[value] = self._main.list_register()
        return self._lists[value]

    def _list_step(self, step: ListOperation, at: int) -> None:
        main, output = self._main, step.output
        if step.operator == "list_new":
            main.list(self._list(output))
        elif step.operator in ("list_from", "list_split"):
            write = self._list_writer.unpacked if step.operator == "list_from" else self._list_writer.split
            write(step, self._list(output), *(self._on(self._typed(item), item, None) for item in step.inputs))
        elif output.kind == "list":
            self._change(step, at)
        elif step.operator == "list_length":
            register = self._tensor(output)
            assert isinstance(register, bc.TensorRegister)
            self._made(output, self._plan.values[output], register)
            main.set_element(register, 0, main.length(self._list(step.inputs[0])))
        elif step.operator == "list_get":
            self._get(step)
        else:
            self._join(step)

    def _change(self, step: ListOperation, at: int) -> None:
        """Write a list that differs from another one, in the other's place where nobody reads that any more."""
        source, output = step.inputs[0], step.output
        if is_last_use(self._steps, at, source):
            self._lists[output] = self._list(source)
        else:
            self._main.list_move(self._list(source), self._list(output))
        items = self._list(output)
        if step.operator == "list_as":
            return
        if step.operator == "list_require":
            passed, failed = self._main.label(), self._main.label()
            self._main.branch(self._main.element(self._tensor(step.inputs[1]), 0), failed)
            self._main.jump(passed)
            self._main.place(failed)
            self._main.fail(step.attrs["message"])
            self._main.place(passed)
            return
        if step.operator == "list_append":
            self._main.append(items, self._typed(step.inputs[1]))
            return
        place = self._main.element(self._here(step.inputs[1]), 0)
        if step.operator == "list_insert":
            self._main.insert(items, place, self._typed(step.inputs[2]))
        else:
            self._main.erase(items, place)

    def _get(self, step: ListOperation) -> None:
        register = self._tensor(step.output)
        assert isinstance(register, bc.TensorRegister)
        self._forget_copies(register)
        self._main.get(self._list(step.inputs[0]), self._main.element(self._here(step.inputs[1]), 0), register)
        if len(step.ranks) > 1:
            wanted = len(step.output.shape)
            self._main.require_range(self._main.rank(register), wanted, wanted, f"dimensions of '{step.output.name}'")
        for axis, extent in enumerate(step.output.shape):
            symbol = extent.symbol if isinstance(extent, Dim) else None
            if symbol is not None and symbol in step.fresh:
                self._main.extent(register, axis, self._numbers.register(symbol))
                self._checked(symbol)
            else:
                found = self._main.extent(register, axis)
                self._main.require_equal(found, self._numbers.of(extent), _axis(step.output, axis))

    def _join(self, step: ListOperation) -> None:
        self._forget_copies()
        items, output = self._list(step.inputs[0]), step.output
        self._list_writer.joined_extents(step, items)
        for symbol in step.fresh:
            self._checked(symbol)
        register = self._tensor(output)
        assert isinstance(register, bc.TensorRegister)
        self._made(output, self._plan.values[output], register)
        self._list_writer.put_together(step, items, register)
        self._numbers.forget()

    def _checked(self, symbol: Symbol) -> None:
        """Write the check of a symbol that was written."""
        self._numbers.changed(symbol)
        self._main.require_range(self._numbers.register(symbol), symbol.low, symbol.high, str(symbol))


def _binds_inputs(step: Instruction) -> bool:
    is_input = all(value.kind == "input" for value in sources_of(step))
    return isinstance(step, (Define, CheckDimension)) and is_input


def _axis(value: Value, axis: int, extent: Extent = 1) -> str:
    multiple = extent.multiple if isinstance(extent, Dim) else None
    kind = "" if multiple is None or multiple[0] == 1 else f", a multiple of {multiple[0]}"
    return f"{value.name}, axis {axis}{kind}"


def _declared(extent: Extent, symbols: Mapping[Symbol, bc.OpenExtent]) -> bc.Extent:
    if not isinstance(extent, Dim):
        return extent
    return symbols.get(extent.symbol) if extent.symbol is not None else None


def _parts(containers: Sequence[Container], *, is_output: bool) -> dict[str, bc.Part]:
    """Return the parts that inputs or outputs are, by their names."""
    found = {}
    for container in containers:
        details = {EXTENTS: container.kind, BYTES: container.dtype}
        if container.is_output == is_output:
            for name, part in zip(container.parts, parts_of(container.kind), strict=True):
                found[name] = bc.Part(part, details.get(part), container.is_mixed and part == EXTENTS)
    return found
