"""Host code of the AOT executor: the function that users call, and the main function that calls operators in order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce

from mlfc.codegen.c_interface import STATE_FIELD, Interface, InterfaceTensor
from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.host.tvm import (
    ADDRESS,
    BYTES,
    as_argument,
    at,
    comment_nodes,
    constant_array,
    element_pointer,
    last_arguments,
)
from mlfc.errors import InternalError
from mlfc.memory import Plan, PoolSpan
from mlfc.memory.plan import DEFAULT_POOL, pool_array
from mlfc.tir import host
from mlfc.tir.host import INT32, INT64, NULL, UINT8, VOID, Body, Expr, Function, Name, Type, const, pointer
from mlfc.tir.ir import Buffer
from mlfc.tir.program import KernelCall, Program, Value

TRACE_BEGIN = Function("MLFC_TRACE_BEGIN", VOID, host.names(index=INT32), is_hook=True)
TRACE_END = Function(
    "MLFC_TRACE_END", VOID, host.names(index=INT32, data=pointer(VOID), nbytes=INT64), is_hook=True
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class AotFunctions:
    """The host functions of one module."""

    program: Program
    plan: Plan
    interface: Interface
    constants: ConstantTable
    function_names: Mapping[str, str]  # C name of each kernel
    shared_workspace: str | None = None  # the array in another file that replaces the module's own
    # by kernel, the variable whose address a shared function gets after the pointers
    last_arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def main_declaration(self) -> Function:
        """The declaration of the function that calls the operators."""
        parameters = (*self._tensor_parameters.values(), *self._memory_parameters.values())
        return Function(main_function_name(self.interface.prefix), INT32, parameters)

    def main(self) -> Function:
        """Return the main function, which calls every operator with its addresses in the workspace."""
        body = Body()
        loaded = {self._memory_parameters[pool.name] for pool in self.interface.constant_pools}
        known = [name for name in self.main_declaration.parameters if name not in loaded]
        touched: set[Expr] = set()
        for index, call in enumerate(self.program.calls):
            arguments = self._arguments(index, call)
            touched.update(item for argument in arguments for item in host.walk(argument))
            comment_nodes(body, call)
            body.evaluate(TRACE_BEGIN(index))
            kernel = host.declaration(self.function_names[call.kernel.name], INT32, *[ADDRESS] * len(arguments))
            body.requires(kernel(*arguments))
            output = arguments[len(call.kernel.params) - 1]
            body.evaluate(TRACE_END(index, output, call.output.nbytes))
        # an input that no operator reads, or a pool that contains no other value
        body.add(*(host.Unused(name) for name in known if name not in touched))
        body.returns(0)
        head = self.main_declaration
        return Function(head.name, head.result, head.parameters, body.stmts)

    @cached_property
    def _tensor_parameters(self) -> dict[Value, Name]:
        """The main function's parameters for inputs and outputs that the caller passes, by value."""
        if self.interface.workspace_io:
            return {}
        named = {item.value.root: f"input_{item.field}" for item in self.interface.inputs}
        named |= {item.value.root: f"output_{item.field}" for item in self.interface.outputs}
        return {value: Name(ADDRESS, name) for value, name in named.items()}

    @cached_property
    def _memory_parameters(self) -> dict[str, Name]:
        """The main function's parameters for memories: of the workspace, of states, of constants that callers load."""
        names = {
            pool.name: "workspace" if pool.name == DEFAULT_POOL else f"pool_{pool.name}" for pool in self.plan.pools
        }
        names |= {STATE_FIELD: "mlfc_states"} if self.interface.states else {}
        loaded = {pool.name: f"constants_{pool.name}" for pool in self.interface.constant_pools}
        found = {memory: Name(BYTES, name) for memory, name in names.items()}
        return found | {memory: Name(pointer(const(UINT8)), name) for memory, name in loaded.items()}

    def _arguments(self, index: int, call: KernelCall) -> list[Expr]:
        values = (*call.inputs, *call.constants, call.output)
        arguments = [
            self._address(value, buffer, is_output=buffer is call.kernel.output)
            for value, buffer in zip(values, call.kernel.params, strict=True)
        ]
        if call.kernel.scratch:
            pool, offset = self.plan.place(self.plan.scratch_offsets[index])
            arguments.append(at(self._memory_parameters[pool.name], offset))
        return [*arguments, *last_arguments(self.last_arguments, call.kernel)]

    def _address(self, value: Value, buffer: Buffer, *, is_output: bool) -> Expr:
        root, start = value.root, value.root_start
        wanted = element_pointer(buffer.dtype, is_output=is_output)
        if root in self._tensor_parameters:
            given = self._tensor_parameters[root]
            return (given.cast(element_pointer("uint8", is_output=is_output)) + start).cast(wanted) if start else given
        if root.kind == "constant":
            loaded = self.constants.loaded_place(root)
            if loaded is not None:
                return (self._memory_parameters[loaded[0]] + loaded[1]).cast(wanted)
            return as_argument(constant_array(self.constants, root), buffer.dtype, is_output=False)
        if root.kind == "state":
            place, offset = self._memory_parameters[STATE_FIELD], self.plan.offset(value)
        elif root.kind == "intermediate":
            pool, offset = self.plan.place(self.plan.offset(value))
            place = self._memory_parameters[pool.name]
        else:
            raise InternalError(f"'{value.name}' is an {root.kind} that the module does not have")
        return (place + offset).cast(wanted) if offset else as_argument(place, buffer.dtype, is_output=is_output)

    def entry(self) -> Function:
        """Return the function that users call, which rejects NULL and calls the main function."""
        interface, body = self.interface, Body()
        groups = () if interface.workspace_io else (("inputs", interface.inputs), ("outputs", interface.outputs))
        structs = [Name(pointer(self._struct(kind, group)), kind) for kind, group in groups]
        tensors = [struct[item.field] for struct, (_, group) in zip(structs, groups, strict=True) for item in group]
        given = [pools[name] for pools in self._caller_pools for name in interface.caller_pools]
        own = [] if interface.external_workspace else [self._pool_pointer(pool) for pool in self.plan.pools]
        if interface.states and not interface.external_workspace:
            own.append(self.states.memory)
        used = [struct for struct, (_, group) in zip(structs, groups, strict=True) if group]
        needed: Sequence[Expr] = [*used, *self._caller_pools, *tensors, *given]
        if needed:
            body.fails_where(_any(pointer.eq(NULL) for pointer in needed))
        body.add(*(host.Unused(struct) for struct in structs if struct not in used))
        self.states.set_first(body)
        body.returns(self.main_declaration(*tensors, *own, *given))
        return Function(interface.entry, INT32, (*structs, *self._caller_pools), body.stmts)

    @cached_property
    def states(self) -> StateFunctions:
        """The functions that reset, save and restore states."""
        return StateFunctions(self.interface, self._caller_pools if self.interface.external_workspace else ())

    def mappers(self) -> list[Function]:
        """Return the functions that locate inputs and outputs in the workspace; none if the caller passes them."""
        if not self.interface.workspace_io:
            return []
        functions = []
        groups = (("inputs", self.interface.inputs), ("outputs", self.interface.outputs))
        for name, (kind, group) in zip(self.interface.mappers, groups, strict=True):
            body = Body()
            places = body.declare(kind, self._struct(kind, group))
            for item in group:
                pool, offset = self.plan.place(self.plan.offset(item.value))
                place = self._pool_pointer(pool)
                is_moved = offset and self.interface.external_workspace
                body.assign(places[item.field], at(place.cast(BYTES) if is_moved else place, offset))
            if not group:
                body.assign(places["unused"], NULL)
            if not (group and self.interface.external_workspace):
                body.add(*map(host.Unused, self._caller_pools))
            body.returns(places)
            functions.append(Function(name, places.type, self._caller_pools, body.stmts))
        return functions

    def _struct(self, kind: str, group: Sequence[InterfaceTensor]) -> Type:
        fields = tuple((item.field, ADDRESS) for item in group) or (("unused", ADDRESS),)
        return Type(f"struct {self.interface.prefix}_{kind}", fields=fields)

    @cached_property
    def _caller_pools(self) -> tuple[Name, ...]:
        """The parameter with the caller's pools, if any."""
        pools = self.interface.caller_pools
        if not pools:
            return ()
        fields = tuple((name, pointer(const(VOID)) if qualifier else ADDRESS) for name, qualifier in pools.items())
        struct = Type(f"struct {self.interface.prefix}_workspace_pools", fields=fields)
        return (Name(pointer(struct), "workspace_pools"),)

    def _pool_pointer(self, pool: PoolSpan) -> Expr:
        """Return the pointer to a pool of the workspace in functions that users call."""
        if self.interface.external_workspace:
            return self._caller_pools[0][pool.name]
        return host.Global(BYTES, self.shared_workspace or pool_array(pool.name), is_array=True)


def main_function_name(prefix: str) -> str:
    """Return TVM's name for the function that calls a module's operators."""
    return f"{prefix}___tvm_main__"


def _any(conditions: Iterable[Expr]) -> Expr:
    """Return the disjunction of conditions as a balanced tree: printers recurse."""
    left = list(conditions)
    while len(left) > 1:
        left = [reduce(lambda a, b: a | b, left[place : place + 2]) for place in range(0, len(left), 2)]
    return left[0]


STATE_ARRAY = "mlfc_state"
"""The static array of a module's states in generated code."""
STATE_FLAG = "mlfc_state_is_set"
"""The static flag of that array, if any initial state is nonzero."""

_BYTES, _READ_ONLY = pointer(UINT8), pointer(const(UINT8))


@dataclass(frozen=True, eq=False)
class StateFunctions:
    """``..._state_reset``, ``..._state_save`` and ``..._state_restore``.

    A static array starts as zeros. If the initial states are not zeros, a flag is 1 once they have been set; the first
    function that accesses the states resets them.
    """

    interface: Interface
    given: tuple[Name, ...]  # the parameter with the caller's memories, if these include the states

    @property
    def memory(self) -> Expr:
        """The memory of the states."""
        if self.interface.external_workspace:
            return self.given[0]["state"].cast(_BYTES)
        return host.Global(_BYTES, STATE_ARRAY, is_array=True)

    def set_first(self, body: Body) -> None:
        """Reset states that do not start as zeros, unless they have been set."""
        if self.interface.has_state_flag:
            with body.where(host.Global(UINT8, STATE_FLAG).eq(0)):
                body.requires(self._function("reset")(*self.given))

    def functions(self) -> tuple[Function, ...]:
        """Return all three functions, or none without states."""
        if not self.interface.states:
            return ()
        other = Name(pointer(VOID), "to")
        save = self._start(other)
        self.set_first(save)
        self._copy(save, other.cast(_BYTES), self.memory)
        source = Name(pointer(const(VOID)), "from")
        restore = self._start(source)
        self._copy(restore, self.memory, source.cast(_READ_ONLY))
        self._note_set(restore)
        for body in (save, restore):
            body.returns(0)
        return (
            self._function("reset", self._reset()),
            self._function("save", save, other),
            self._function("restore", restore, source),
        )

    def _reset(self) -> Body:
        body = self._start()
        for number, state in enumerate(self.interface.states):
            place = self.memory + state.offset if state.offset else self.memory
            image = state.image
            is_uniform = (image == image[:1]).all()
            values = None
            if not is_uniform:
                rows = [host.Number(UINT8, int(item)) for item in image]
                values = body.table(f"initial_{number}", UINT8, rows)
            with body.loop("i", image.size) as index:
                body.assign(place[index], int(image[0]) if values is None else values[index])
        self._note_set(body)
        body.returns(0)
        return body

    def _start(self, *others: Name) -> Body:
        body = Body()
        pointers: list[Expr] = [*self.given, *others, *(memories["state"] for memories in self.given)]
        for item in pointers:
            body.fails_where(item.eq(NULL))
        return body

    def _copy(self, body: Body, to: Expr, source: Expr) -> None:
        with body.loop("i", self.interface.state_bytes) as index:
            body.assign(to[index], source[index])

    def _note_set(self, body: Body) -> None:
        if self.interface.has_state_flag:
            body.assign(host.Global(UINT8, STATE_FLAG), 1)

    def _function(self, what: str, body: Body | None = None, *others: Name) -> Function:
        name = self.interface.state_function(what)
        return Function(name, INT32, (*self.given, *others), None if body is None else body.stmts)
