"""The main function of a dynamic model: its instructions as host code.

Dimensions are int64 variables; branches and loops are jumps. The function checks for invalid inputs, dimensions outside
their bounds, sizes that overflow, and the limits of memory and iterations, each immediately before it matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.host.tvm import ADDRESS, BYTES, as_argument, comment_nodes, last_arguments
from mlfc.codegen.unit import Unit
from mlfc.codegen.vm import runtime
from mlfc.codegen.vm.dimension_code import LARGEST_NUMBER, Dimensions
from mlfc.codegen.vm.lists import ListCode
from mlfc.codegen.vm.runtime import AXIS_ALIGNMENT, AXIS_DTYPE, CPU, PARAMETERS, TRACE_CALL, mlf_drop_all, number
from mlfc.codegen.vm.tensors import Tensors
from mlfc.memory.liveness import alignment_of, most_bytes
from mlfc.memory.plan import Storage
from mlfc.support.c_names import KEYWORDS
from mlfc.support.dims import Dim, Extent, Symbol, bounds, maximum
from mlfc.support.executable import ALIGNMENT, NUMBERED_DTYPES, Executable, RunCode, run_symbol, state_offsets
from mlfc.tir import host
from mlfc.tir import program as tir_program
from mlfc.tir.host import INT32, INT64, NULL, UINTPTR, Expr, Function, Name, Number, pointer
from mlfc.tir.program import Assign, Branch, BranchOnSymbols, CheckDimension, Define, KernelCall, Label, sources_of

_HOST, _INPUTS, _OUTPUTS, _WORK, _WORK_BYTES, _ERROR = PARAMETERS
_RESERVED = {
    "run", "finish", "arena", "status", "numbers", "tensors", "null", "memmove", "uint8_t", "int32_t", "int64_t",
    "float16", *(item.name for item in PARAMETERS), *KEYWORDS,
}  # fmt: skip


class MainFunction:
    """Writes the main function of a module.

    `functions` has the function of each host kernel and the launcher of each device kernel, `last` the variables whose
    addresses shared functions get after the pointers, and `packed` the names of functions of runtime modules.
    """

    def __init__(
        self,
        unit: Unit,
        executable: Executable,
        constants: ConstantTable,
        functions: Mapping[str, str],
        last: Mapping[str, str],
        packed: Mapping[str, str],
    ) -> None:
        program, plan = unit.program, unit.plan
        self._steps = program.instructions
        self._program = program
        self._plan = plan
        self._executable = executable
        self._functions, self._last, self._packed = functions, last, packed
        self._has_device = any(kernel.device for kernel in program.kernels)
        self._body = body = runtime.RunBody(Name(runtime.RUN, "run"), PARAMETERS[-1], holds_memory=not plan.is_bounded)
        names = {constants.symbol(value).lower() for value in program.constants}
        names |= {name.lower() for name in (*functions.values(), *last.values())}
        self._dimensions = Dimensions(body, body.refuse, {*_RESERVED, *names})
        *offsets, self._state_bytes = state_offsets(executable)
        states = {state.before: offset for state, offset in zip(program.states, offsets, strict=True)}
        self._tensors = Tensors(
            body, self._dimensions, plan, constants, program.inputs, states, has_device=self._has_device
        )
        self._lists = ListCode(body, self._dimensions, self._tensors)
        # dimensions of variables: those of the last assigned value
        self._extents: dict[tuple[tir_program.Value, int], Name] = {
            (step.source.root, step.axis): Name(INT64, self._dimensions.fresh(f"{step.source.name}_extent_{step.axis}"))
            for step in self._steps
            if isinstance(step, Define) and step.axis is not None and step.source.root.kind == "variable"
        }
        self._labels: dict[Label, host.Label] = {}
        self._placed: set[Label] = set()
        self._calls = 0
        self._work_memory = tir_program.Value("work_memory", (), "uint8", "intermediate")  # of all parts
        # arguments of kernels, and of functions of runtime modules
        self._numbers = Name(pointer(INT64), "numbers", is_array=True)
        self._given = Name(pointer(runtime.TENSOR), "tensors", is_array=True)
        self._most_numbers = self._most_packed = 0
        self._last_reads = {value.root: at for at, step in enumerate(self._steps) for value in sources_of(step)}
        self._places = {step: at for at, step in enumerate(self._steps) if isinstance(step, Label)}
        self._writers: dict[type, Callable[[Any], None]] = {
            Define: self._define, KernelCall: self._call, Assign: self._assign,
            tir_program.SetSymbols: self._set_symbols, CheckDimension: self._check_dimension,
            tir_program.Return: self._return,
        }  # fmt: skip

    def function(self) -> Function:
        """Return the main function."""
        self._check_inputs()
        binding = (
            isinstance(step, (Define, CheckDimension)) and all(value.kind == "input" for value in sources_of(step))
            for step in self._steps
        )
        begin = next((at for at, binds in enumerate(binding) if not binds), 0)
        part: int | None = None  # the part of the run that starts here, until its memory is allocated
        for at, step in enumerate(self._steps):
            if at == begin:
                part = 0
                if self._plan.is_bounded and (needed := self._plan.size):
                    body, limit = self._body, _HOST["memory_limit"]
                    body.refuse(limit.ne(0) & (number(needed) > limit), RunCode.MEMORY, number(needed), limit)
                    too_small = _WORK.eq(NULL) | (number(needed + ALIGNMENT) > _WORK_BYTES)
                    body.refuse(too_small, RunCode.WORK, number(needed + ALIGNMENT))
                    skipped = (Number(UINTPTR, ALIGNMENT) - _WORK.cast(UINTPTR) % ALIGNMENT) % ALIGNMENT
                    body.assign(self._tensors.arena, _WORK.cast(BYTES) + skipped)
            if part is not None and not isinstance(step, BranchOnSymbols):
                self._find_work(part)
                part = None
            self._step(step, at)
            for root in dict.fromkeys(value.root for value in sources_of(step)):
                if self._last_reads[root] == at:
                    self._tensors.forget_copies(root)
            if isinstance(step, Label):
                part = at
        stmts = (*self._prologue(), *self._body.stmts, *self._epilogue())
        return Function(run_symbol(self._executable.name), INT32, PARAMETERS, stmts)

    def _prologue(self) -> tuple[host.Stmt, ...]:
        body, run = host.Body(), self._body.run
        held = [*self._tensors.held.values(), *self._tensors.copies]
        zeros = [*self._dimensions.declared, *self._extents.values()]
        body.add(*(host.Declare(name, number(0)) for name in zeros))
        body.add(*(host.Declare(name, NULL) for name in self._tensors.storages.values()))
        body.add(host.Declare(run), host.Declare(self._tensors.arena, NULL))
        body.add(*(host.Declare(name) for name in (*held, *self._lists.names)))
        for name, most in ((self._numbers, self._most_numbers), (self._given, self._most_packed)):
            body.add(*[host.Declare(name, None, most)] * bool(most))
        for place, value in (("host", _HOST), ("error", _ERROR), ("used", number(0)), ("turns", number(0))):
            body.assign(run[place], value)
        body.assign(_ERROR["code"], 0)
        body.assign(_ERROR["text"], NULL)
        for index in range(3):
            body.assign(_ERROR["values"][index], 0)
        for name in held:
            body.assign(name["block"], NULL)
        for name in self._lists.names:
            for place, value in (("items", NULL), ("length", number(0)), ("room", number(0))):
                body.assign(name[place], value)
        if not self._plan.is_bounded:
            for index in range(len(self._program.outputs)):
                body.assign(_OUTPUTS[index]["block"], NULL)
        unused = [_INPUTS] * (not self._program.inputs) + [_OUTPUTS] * (not self._program.outputs)
        uses_work = self._plan.size > 0 or self._tensors.storages
        unused += [_WORK, _WORK_BYTES] * (not uses_work) + [run] + [self._tensors.arena]
        body.add(*map(host.Unused, unused))
        body.evaluate(runtime.TRACE_RUN())
        return body.stmts

    def _epilogue(self) -> tuple[host.Stmt, ...]:
        if self._plan.is_bounded:
            return ()
        body, run = host.Body(), self._body.run
        body.place(self._body.finish)
        for name in (*self._tensors.held.values(), *self._tensors.copies):
            body.evaluate(runtime.mlf_drop(run.address, name.address))
        for name in self._lists.names:
            body.evaluate(runtime.mlf_clear(run.address, name.address))
        if self._program.outputs:
            with body.where(_ERROR["code"].ne(0)):
                body.evaluate(mlf_drop_all(run.address, _OUTPUTS, len(self._program.outputs)))
        body.returns(_ERROR["code"])
        return body.stmts

    def _check_inputs(self) -> None:
        """Write the checks of the caller's inputs: dtypes, ranks, alignment, and static dimensions."""
        body = self._body
        if self._state_bytes:
            body.refuse(_HOST["state"].eq(NULL), RunCode.STATE, number(self._state_bytes))
        for place, value in enumerate(self._program.inputs):
            tensor = _INPUTS[place]
            for item, wanted, axis in (
                ("dtype", NUMBERED_DTYPES[value.dtype], AXIS_DTYPE),
                ("rank", len(value.shape), runtime.AXIS_RANK),
            ):
                body.refuse(tensor[item].ne(wanted), RunCode.BAD_INPUT, place, axis, tensor[item], text=value.name)
            # as the planner aligns values: loads are at most as wide as the whole tensor
            alignment = max(1, alignment_of(most_bytes(value), ALIGNMENT))
            if alignment == 1:
                continue
            misaligned = (tensor["data"].cast(UINTPTR) % alignment).ne(0)
            if self._has_device:
                misaligned = tensor["device"].eq(CPU) & misaligned
            body.refuse(misaligned, RunCode.BAD_INPUT, place, AXIS_ALIGNMENT, alignment, text=value.name)

    def _find_work(self, part: int) -> None:
        """Write code that allocates the memory of a part of the run."""
        body, run = self._body, self._body.run.address
        storages = [storage for storage in self._plan.storages if storage.is_lasting and storage.part == part]
        if self._plan.is_bounded or not storages:
            return
        for storage in storages:
            if storage.device is not None:
                self._tensors.allocate(
                    self._tensors.device_storage(storage), self._bytes(storage), storage.device, "block"
                )
        offsets: list[tuple[Storage, Expr]] = []
        total = Name(INT64, self._dimensions.fresh("needed"))
        body.add(host.Declare(total, number(0)))
        for storage in storages:
            if storage.device is None:
                offsets.append((storage, body.declare(self._dimensions.fresh("start"), INT64, total)))
                body.needs(runtime.mlf_room(run, self._bytes(storage), total.address))
        if not offsets:
            body.add(host.Unused(total))
            return
        memory = self._tensors.tensor_of(self._work_memory)
        body.needs(runtime.mlf_work(run, total, _WORK, _WORK_BYTES, memory.address))
        body.assign(_ERROR["values"][0], total + ALIGNMENT)
        for storage, start in offsets:
            place = self._tensors.storage_data(storage)
            body.assign(place, memory["data"].cast(BYTES) + start)

    def _bytes(self, storage: Storage) -> Expr:
        # the memory of branches and loops that do not run is also allocated; their sizes may be negative
        return self._dimensions.size(storage.nbytes if bounds(storage.nbytes)[0] >= 0 else maximum(storage.nbytes, 0))

    def _step(self, step: tir_program.Instruction, at: int) -> None:
        if isinstance(step, Label):
            self._dimensions.forget()
            self._tensors.forget_copies()
            self._placed.add(step)
            targets = (item.label for item in self._steps[at:] if isinstance(item, tir_program.Jump))
            branches = (item.otherwise for item in self._steps[at:] if isinstance(item, (Branch, BranchOnSymbols)))
            if step in self._labels or any(label is step for label in (*targets, *branches)):
                self._body.place(self._label(step))
        elif isinstance(step, tir_program.Jump):
            if self._places[step.label] != at + 1:
                self._jump(step.label)
        elif isinstance(step, tir_program.ListOperation):
            self._lists.write(step, self._steps, at)
        elif isinstance(step, tir_program.CheckBounds):
            self._check_bounds(step.symbol, step.extent)
        elif isinstance(step, Branch):
            with self._body.where(self._lists.first(step.condition).eq(0)):
                self._jump(step.otherwise)
        elif isinstance(step, BranchOnSymbols):
            for symbol, value in step.values:
                with self._body.where(self._dimensions.symbol(symbol).ne(number(value))):
                    self._jump(step.otherwise)
        else:
            self._writers[type(step)](step)

    def _label(self, label: Label) -> host.Label:
        if label not in self._labels:
            self._labels[label] = host.Label(self._dimensions.fresh(label.name))
        return self._labels[label]

    def _jump(self, label: Label) -> None:
        if label in self._placed:
            self._body.needs(runtime.mlf_turn(self._body.run.address))
        self._body.jump(self._label(label))

    def _define(self, step: Define) -> None:
        symbol, source = step.symbol, step.source
        variable = self._dimensions.symbol(symbol)
        self._dimensions.changed(symbol)
        if step.axis is None:
            self._body.assign(variable, self._lists.first(source))
        elif source.root in self._tensors.inputs:
            place = self._tensors.inputs[source.root]
            self._body.assign(variable, _INPUTS[place]["extents"][step.axis])
            self._body.within(variable, symbol, RunCode.BAD_INPUT, place, step.axis, variable, text=source.name)
            return
        elif (source.root, step.axis) in self._extents:
            self._body.assign(variable, self._extents[source.root, step.axis])
        else:
            self._body.assign(variable, self._dimensions.of(source.shape[step.axis]))
        self._body.within(variable, symbol)

    def _set_symbols(self, step: tir_program.SetSymbols) -> None:
        values = [self._dimensions.named(extent) for extent in step.extents]
        variables = [self._dimensions.symbol(symbol) for symbol in step.symbols]
        for symbol, extent in zip(step.symbols, step.extents, strict=True):
            self._check_bounds(symbol, extent)
        # values that an earlier assignment overwrites are copied first
        for index, value in enumerate(values):
            if value in variables[:index]:
                values[index] = self._body.declare(self._dimensions.fresh("before"), INT64, value)
        for symbol, variable, value in zip(step.symbols, variables, values, strict=True):
            self._body.assign(variable, value)
            self._dimensions.changed(symbol)

    def _check_bounds(self, symbol: Symbol, extent: Extent) -> None:
        low, high = bounds(extent)
        if low < symbol.low or high > symbol.high:
            self._body.within(self._dimensions.named(extent), symbol)

    def _check_dimension(self, step: CheckDimension) -> None:
        place = self._tensors.inputs.get(step.source.root)
        if place is None:  # a state, whose shape is static
            return
        found, wanted = _INPUTS[place]["extents"][step.axis], self._dimensions.of(step.extent)
        if not isinstance(step.extent, Dim) or step.extent.symbol is not None:
            self._body.refuse(found.ne(wanted), RunCode.BAD_INPUT, place, step.axis, found, text=step.source.name)
        else:
            multiple = step.extent.multiple
            kind = "" if multiple is None or multiple[0] == 1 else f", a multiple of {multiple[0]}"
            text = f"{step.source.name}, axis {step.axis}{kind}"
            self._body.refuse(found.ne(wanted), RunCode.EQUAL, found, wanted, text=text)

    def _call(self, call: KernelCall) -> None:
        body = self._body
        kernel = call.kernel
        index, self._calls = self._calls, self._calls + 1
        comment_nodes(body, call)
        self._tensors.make(call.output.root)
        if kernel.external is not None and kernel.external.module is not None:
            self._call_packed(call)
            return
        numbers = [self._dimensions.named(extent) for extent in call.numbers]
        for symbol, extent in zip(kernel.symbols, call.numbers, strict=True):
            low, high = max(symbol.low, -LARGEST_NUMBER), min(symbol.high, LARGEST_NUMBER)
            self._dimensions.require(extent, low, high, RunCode.KERNEL, -1)
        for place, value in enumerate(numbers):
            body.assign(self._numbers[place], value)
        self._most_numbers = max(self._most_numbers, len(numbers))
        arguments = self._arguments(call, index)
        given = self._numbers if numbers else NULL
        traced = (_HOST, index, given, len(numbers))
        body.evaluate(TRACE_CALL(*traced, NULL, 0))
        kinds = [argument.type for argument in arguments] + [INT32] * len(numbers)
        function = host.declaration(self._functions[kernel.name], INT32, *kinds)
        with body.where(function(*arguments, *(value.cast(INT32) for value in numbers)).ne(0)):
            body.fail(RunCode.KERNEL, -1, text=kernel.name)
        output = self._tensors.data(call.output.root)
        body.evaluate(TRACE_CALL(*traced, output.cast(ADDRESS), self._dimensions.size(call.output.nbytes)))

    def _arguments(self, call: KernelCall, index: int) -> list[Expr]:
        kernel, device = call.kernel, call.kernel.device
        values = (*call.inputs, *call.constants, call.output)
        arguments: list[Expr] = []
        if device is None:
            arguments += [
                as_argument(self._tensors.here(value, None), buffer.dtype, is_output=buffer is kernel.output)
                for value, buffer in zip(values, kernel.params, strict=True)
            ]
        else:
            arguments += [self._tensors.here(value, device).cast(ADDRESS) for value in values]
        return [*arguments, *self._tensors.scratch(call, index), *last_arguments(self._last, kernel)]

    def _call_packed(self, call: KernelCall) -> None:
        """Write the call of a runtime module's function, which takes tensors of its declared shapes."""
        body = self._body
        tensors = self._given
        self._most_packed = max(self._most_packed, len(call.inputs) + 1)
        for place, value in enumerate(call.inputs):
            data = self._tensors.here(value, None)
            described = self._tensors.described(value)
            body.assign(tensors[place], described)
            body.assign(tensors[place]["data"], data.cast(ADDRESS))
            body.assign(tensors[place]["device"], CPU)
        body.assign(tensors[len(call.inputs)], self._tensors.described(call.output))
        name = self._packed[call.kernel.name]
        packed = _HOST["packed"]
        body.refuse(packed.eq(NULL), RunCode.PACKED, -1, text=name)
        called = runtime.PACKED.at(packed, _HOST["context"], name, tensors, len(call.inputs) + 1)
        with body.where(called.ne(0)):
            body.fail(RunCode.PACKED, -1, text=name)

    def _assign(self, step: Assign) -> None:
        pairs = list(zip(step.variables, step.sources, strict=True))
        for variable, value in pairs:
            if variable.kind == "list":
                self._lists.move(value, variable)
        tensors = [pair for pair in pairs if pair[0].kind != "list"]
        known = [
            (self._extents[variable.root, axis], self._dimensions.size(extent))
            for variable, value in tensors
            for axis, extent in enumerate(value.shape)
            if (variable.root, axis) in self._extents
        ]
        for variable, value in tensors:
            if self._plan.is_bounded:
                size = self._dimensions.size(value.nbytes)
                self._body.move(self._tensors.data(variable.root), self._tensors.data(value), size)
            elif self._tensors.tensor_of(variable.root) is not (described := self._tensors.described(value)):
                self._tensors.forget_copies(variable.root)
                self._tensors.hold(self._tensors.tensor_of(variable.root), described)
        for place, extent in known:
            self._body.assign(place, extent)

    def _return(self, step: tir_program.Return) -> None:
        count = len(self._program.outputs)
        extents = (extent for value in self._program.inputs for extent in value.shape)
        own = {extent.symbol for extent in extents if isinstance(extent, Dim) and extent.symbol}
        for place, (value, declared) in enumerate(zip(step.outputs[:count], self._program.outputs, strict=True)):
            for axis, (extent, wanted) in enumerate(zip(value.shape, declared.shape, strict=True)):
                if extent != wanted and (not isinstance(wanted, Dim) or wanted.symbol in own):
                    found = self._dimensions.named(extent)
                    differs = found.ne(self._dimensions.of(wanted))
                    self._body.refuse(differs, RunCode.BAD_OUTPUT, place, axis, found, text=declared.name)
        for place, value in enumerate(step.outputs[:count]):
            described = self._tensors.described(value)
            if self._plan.is_bounded or not self._tensors.is_held(value.root):
                self._body.assign(_OUTPUTS[place], described)
            else:
                self._tensors.hold(_OUTPUTS[place], described)
        if not self._plan.is_bounded:
            for place, value in enumerate(step.outputs[:count]):
                if place:
                    nbytes = self._dimensions.size(value.nbytes)
                    self._body.needs(runtime.mlf_separate(self._body.run.address, _OUTPUTS, place, nbytes))
        run = self._body.run.address
        if count:
            with self._body.where(_HOST["targets"].ne(NULL)):
                self._body.needs(runtime.mlf_fits(run, _OUTPUTS, count))
        for state, value in zip(self._program.states, step.outputs[count:], strict=True):
            self._body.move(
                self._tensors.state(state.before), self._tensors.here(value, None), number(state.before.nbytes)
            )
        sizes = [self._dimensions.named(value.nbytes) for value in step.outputs[:count]]
        if count:
            with self._body.where(_HOST["targets"].ne(NULL)):
                for place, size in enumerate(sizes):
                    self._body.move(_HOST["targets"][place]["data"], _OUTPUTS[place]["data"], size)
                if not self._plan.is_bounded:
                    self._body.evaluate(mlf_drop_all(run, _OUTPUTS, count))
        if self._plan.is_bounded:
            self._body.returns(0)
        else:
            self._body.jump(self._body.finish)
