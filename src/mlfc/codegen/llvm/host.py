"""Emission of host functions as LLVM IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llvmlite import ir

from mlfc.codegen.llvm.context import INT8, INT32, INT64, POINTER
from mlfc.codegen.vm.runtime import TRACE_RUN
from mlfc.errors import InternalError
from mlfc.memory.plan import POOL_ALIGNMENT
from mlfc.target.llvm import architecture
from mlfc.tir import host
from mlfc.tir.host import Expr, Function, Stmt, Type

_VOID = ir.VoidType()
_UNLIKELY = (1, 99)
# maximum size in bytes of a struct that C functions return in registers, by prefix of the architecture's name
_RETURNED_IN_REGISTERS = {
    "x86_64": 16, "aarch64": 16, "arm": 4, "thumb": 4, "riscv32": 8, "riscv64": 16, "wasm32": 4, "wasm64": 8,
}  # fmt: skip
_RETURNED_ON_WINDOWS = 8
_WORD_BYTES = {"x86_64": 8, "aarch64": 8, "riscv64": 8, "wasm64": 8}


@dataclass(eq=False)
class HostFunctions:
    """Writes host functions into a module."""

    module: ir.Module
    traced: bool = False  # whether calls of trace hooks are emitted
    has_weak: bool = False  # whether the object format supports weak variables
    _texts: dict[str, ir.GlobalVariable] = field(default_factory=dict)

    def define(self, function: Function) -> ir.Function:
        """Write a function, and the module's internal functions that it calls."""
        made = self.declared(function)
        _FunctionEmitter(self, function, made).run()
        return made

    def declared(self, function: Function) -> ir.Function:
        """Return a function of the module: declare an external one if necessary, or write an internal one."""
        known = self.module.globals.get(function.name)
        if known is not None:
            return known
        kinds = [llvm_type(parameter.type) for parameter in function.parameters]
        result = llvm_type(function.result)
        if _is_returned_in_memory(self.module.triple, result):
            kinds, result = [POINTER, *kinds], _VOID
        made = c_function(self.module, function.name, kinds, result)
        for argument in made.args:
            if argument.type == INT32:
                argument.add_attribute("signext")
        if function.is_static and function.body is not None:
            made.linkage = "internal"
            made.attributes.add("noinline")
            _FunctionEmitter(self, function, made).run()
        return made

    def text(self, text: str) -> ir.GlobalVariable:
        """Return a C string."""
        if text not in self._texts:
            data = bytearray(text.encode() + b"\0")
            value = ir.Constant(ir.ArrayType(INT8, len(data)), data)
            self._texts[text] = constant_global(self.module, "text", value)
        return self._texts[text]

    def variable(self, name: host.Global) -> ir.GlobalVariable:
        """Return a variable, declared if the module does not have it yet."""
        known = self.module.globals.get(name.name)
        if known is not None:
            return known
        kind = ir.ArrayType(INT8, 0) if name.is_array else llvm_type(name.type)
        made = ir.GlobalVariable(self.module, kind, name.name)
        if name.is_weak and self.has_weak:
            made.initializer, made.linkage = ir.Constant(made.value_type, None), "weak"
        return made


def llvm_type(kind: Type) -> ir.Type:
    """Return the LLVM type of a C type."""
    if kind.to is not None:
        return ir.ArrayType(llvm_type(kind.to), kind.length) if kind.length else POINTER
    if kind.is_union:  # TVM's union has the size of its integer
        return INT64
    if kind.fields:
        return ir.LiteralStructType([llvm_type(part) for _, part in kind.fields])
    return ir.IntType(kind.bits) if kind.bits else _VOID


class _FunctionEmitter:
    def __init__(self, functions: HostFunctions, function: Function, made: ir.Function) -> None:
        self._functions = functions
        self._function = function
        self._made = made
        self._builder = ir.IRBuilder(made.append_basic_block("entry"))
        self._places: dict[host.Name, ir.Value] = {}
        self._labels: dict[host.Label, ir.Block] = {}

    def run(self) -> None:
        given = self._made.args[len(self._made.args) - len(self._function.parameters) :]
        for parameter, argument in zip(self._function.parameters, given, strict=True):
            self._builder.store(argument, self._place(parameter))
        struct = llvm_type(self._function.result)
        self._block(self._function.body or ())
        if _is_returned_in_memory(self._functions.module.triple, struct):
            place = self._made.args[0]
            place.type = struct.as_pointer()  # the attribute requires a pointer type with a pointee
            place.add_attribute("sret")
            place.add_attribute("noalias")

    def _place(self, var: host.Name, count: int = 0) -> ir.Value:
        """Return stack memory for a variable, allocated in the entry block: in a loop, it would grow the stack."""
        kind = var.type.to if count else var.type
        assert kind is not None
        with self._builder.goto_entry_block():
            made = self._builder.alloca(llvm_type(kind), size=count or None)
        made.type = POINTER  # an opaque pointer, so that any member of a union can be stored
        self._places[var] = made
        return made

    def _block(self, stmts: Sequence[Stmt]) -> None:
        for stmt in stmts:
            if self._builder.block.is_terminated:  # code after it is reachable only through a label
                self._builder.position_at_end(self._builder.append_basic_block("behind"))
            self._stmt(stmt)

    def _label(self, label: host.Label) -> ir.Block:
        if label not in self._labels:
            self._labels[label] = self._builder.append_basic_block(label.name)
        return self._labels[label]

    def _stmt(self, stmt: Stmt) -> None:
        builder = self._builder
        if isinstance(stmt, (host.Jump, host.LabelPlace)):
            builder.branch(self._label(stmt.label))
            if isinstance(stmt, host.LabelPlace):
                builder.position_at_end(self._label(stmt.label))
        elif isinstance(stmt, host.Declare):
            place = self._place(stmt.var, stmt.count)
            if stmt.value is not None:
                builder.store(self._as(stmt.value, stmt.var.type), place)
        elif isinstance(stmt, host.Table):
            self._places[stmt.var] = self._table(stmt)
        elif isinstance(stmt, host.Assign):
            value = host.Operation(host.common(stmt.place.type, stmt.value.type), stmt.op, stmt.place, stmt.value)
            builder.store(self._as(value if stmt.op else stmt.value, stmt.place.type), self._address(stmt.place))
        elif isinstance(stmt, host.Evaluate):
            self._evaluate(stmt.call)
        elif isinstance(stmt, host.Return):
            self._return(stmt.value)
        elif isinstance(stmt, (host.If, host.For, host.DoWhile)):
            self._nested(stmt)

    def _nested(self, stmt: host.If | host.For | host.DoWhile) -> None:
        builder = self._builder
        if isinstance(stmt, host.For):
            builder.store(self._as(stmt.start, stmt.var.type), self._place(stmt.var))
        body, end = builder.append_basic_block("body"), builder.append_basic_block("end")
        head = body
        if isinstance(stmt, host.For):
            head = builder.append_basic_block("head")
            builder.branch(head)
            builder.position_at_end(head)
        if isinstance(stmt, host.DoWhile):
            builder.branch(body)
        else:
            last = stmt.body[-1] if isinstance(stmt, host.If) else None
            # an error path, which leaves the enclosing block
            leaves = isinstance(last, host.Return) or (isinstance(last, host.Jump) and last.label.is_unlikely)
            self._branch(stmt.condition, body, end, _UNLIKELY if leaves else None)
        builder.position_at_end(body)
        self._block(stmt.body)
        if isinstance(stmt, host.For):
            self._stmt(host.Assign(stmt.var, host.Number(host.INT, stmt.step), "+"))
        if isinstance(stmt, host.DoWhile):
            self._branch(stmt.condition, body, end)
        elif not builder.block.is_terminated:
            builder.branch(head if isinstance(stmt, host.For) else end)
        builder.position_at_end(end)

    def _branch(
        self, condition: Expr, then: ir.Block, otherwise: ir.Block, weights: tuple[int, int] | None = None
    ) -> None:
        """Branch to one of two blocks."""
        if isinstance(condition, host.Operation) and condition.op in host.CONNECTIVES:
            rest = self._builder.append_basic_block("rest")
            ends = (rest, otherwise) if condition.op == "&&" else (then, rest)
            self._branch(condition.a, *ends, weights if condition.op == "||" else None)
            self._builder.position_at_end(rest)
            self._branch(condition.b, then, otherwise, weights)
            return
        branch = self._builder.cbranch(self._value(condition), then, otherwise)
        if weights:
            branch.set_weights(weights)

    def _evaluate(self, call: host.Call) -> None:
        if not call.function.is_hook:
            self._value(call)
        elif self._functions.traced and call.function is not TRACE_RUN:
            hook = call.function
            self._value(replace(hook, name=hook.name.lower(), is_hook=False)(*call.arguments))

    def _return(self, value: Expr) -> None:
        struct = llvm_type(self._function.result)
        if _is_returned_in_memory(self._functions.module.triple, struct):
            self._builder.store(self._value(value), self._made.args[0])
            self._builder.ret_void()
        else:
            self._builder.ret(self._as(value, self._function.result))

    def _table(self, stmt: host.Table) -> ir.Value:
        assert stmt.var.type.to is not None
        kind = llvm_type(stmt.var.type.to)
        array = ir.ArrayType(kind, stmt.count)
        if not stmt.rows:
            made = constant_global(self._functions.module, stmt.var.name, ir.Constant(array, None))
            made.global_constant = False
            return made
        rows = []
        for row in stmt.rows:
            if isinstance(row, Expr):
                rows.append(self._as(row, stmt.var.type.to))
            else:
                fields = zip(row, stmt.var.type.to.fields, strict=True)
                rows.append(ir.Constant(kind, [self._as(part, want) for part, (_, want) in fields]))
        return constant_global(self._functions.module, stmt.var.name, ir.Constant(array, rows))

    def _as(self, expr: Expr, kind: Type) -> ir.Value:
        """Return the value of an expression, converted to another type by C's rules."""
        value, target = self._value(expr), llvm_type(kind)
        if value.type == target:
            return value
        if expr.type.to is not None:
            return self._builder.ptrtoint(value, target)
        if isinstance(value, ir.Constant):
            return ir.Constant(target, value.constant)
        if value.type.width > target.width:
            return self._builder.trunc(value, target)
        extend = self._builder.sext if expr.type.signed and expr.type.bits > 1 else self._builder.zext
        return extend(value, target)

    def _value(self, expr: Expr) -> ir.Value:
        if isinstance(expr, host.Number):
            return ir.Constant(llvm_type(expr.type), None if expr.type.to is not None else expr.value)
        if isinstance(expr, host.Text):
            return self._functions.text(expr.text)
        if isinstance(expr, (host.Name, host.Field, host.Element)):
            is_array = expr.is_array if isinstance(expr, host.Name) else bool(expr.type.length)
            place = self._address(expr)
            return place if is_array else self._builder.load(place, typ=llvm_type(expr.type))
        if isinstance(expr, host.Address):
            return self._address(expr.of)
        if isinstance(expr, host.Cast):
            return self._as(expr.of, expr.type)
        if isinstance(expr, host.Choice):
            arms = self._as(expr.then, expr.type), self._as(expr.otherwise, expr.type)
            return self._builder.select(self._value(expr.condition), *arms)
        if isinstance(expr, host.Call):
            return self._call(expr)
        if isinstance(expr, host.Operation):
            return self._operation(expr)
        raise InternalError(f"LLVM has no form of {type(expr).__name__}")

    def _call(self, call: host.Call) -> ir.Value:
        function = self._called(call)
        given = zip(call.arguments, call.function.parameters, strict=True)
        arguments = [self._as(argument, parameter.type) for argument, parameter in given]
        if call.function is host.MEMMOVE:
            arguments.append(ir.Constant(ir.IntType(1), 0))
        extended = {index: ("signext",) for index, value in enumerate(arguments) if value.type == INT32}
        return self._builder.call(function, arguments, arg_attrs=extended)

    def _called(self, call: host.Call) -> ir.Value:
        """Return the callee of a call."""
        if call.function is host.MEMMOVE:  # the width of the length, a size_t, depends on the machine
            return self._functions.module.declare_intrinsic("llvm.memmove", [POINTER, POINTER, INT64])
        if call.pointer is None:
            return self._functions.declared(call.function)
        kinds = [llvm_type(parameter.type) for parameter in call.function.parameters]
        found = self._value(call.pointer)
        # llvmlite reads a call's signature from this type
        found.type = ir.FunctionType(llvm_type(call.function.result), kinds).as_pointer()
        return found

    def _operation(self, expr: host.Operation) -> ir.Value:
        builder, kind = self._builder, host.common(expr.a.type, expr.b.type)
        if kind.to is not None and expr.op == "+":
            return self._element(self._value(expr.a), expr.b, kind.to)
        a, b = self._as(expr.a, kind), self._as(expr.b, kind)
        if expr.op in host.COMPARISONS:
            signed = kind.to is None and kind.signed
            return (builder.icmp_signed if signed else builder.icmp_unsigned)(expr.op, a, b)
        operations = {
            "+": builder.add, "-": builder.sub, "*": builder.mul,
            "/": builder.sdiv if kind.signed else builder.udiv, "%": builder.srem if kind.signed else builder.urem,
        }  # fmt: skip
        return operations[expr.op](a, b)

    def _address(self, expr: Expr) -> ir.Value:
        """Return the address of a variable, field or element."""
        if isinstance(expr, host.Global):
            return self._functions.variable(expr)
        if isinstance(expr, host.Name):
            return self._places[expr]
        if isinstance(expr, host.Element):
            return self._element(self._value(expr.of), expr.index, expr.type)
        if isinstance(expr, host.Field):
            struct = expr.of.type.to or expr.of.type
            place = self._address(expr.of) if expr.of.type.to is None else self._value(expr.of)
            index = 0 if struct.is_union else [name for name, _ in struct.fields].index(expr.name)
            if not index:
                return place
            steps = [ir.Constant(INT32, 0), ir.Constant(INT32, index)]
            return self._builder.gep(place, steps, inbounds=True, source_etype=llvm_type(struct))
        raise InternalError(f"{type(expr).__name__} has no address")

    def _element(self, start: ir.Value, index: Expr, kind: Type) -> ir.Value:
        if isinstance(index, host.Number) and not index.value:
            return start
        inside = isinstance(index, host.Number)
        return self._builder.gep(start, [self._as(index, host.INT64)], inbounds=inside, source_etype=llvm_type(kind))


def c_function(module: ir.Module, name: str, parameters: Sequence[ir.Type], result: ir.Type = INT32) -> ir.Function:
    """Return the function of a module with this C name, declared if necessary."""
    known = module.globals.get(name)
    if known is not None:
        return known
    function = ir.Function(module, ir.FunctionType(result, list(parameters)), name)
    if result == INT32:  # some ABIs require the upper half of the register to be extended
        function.return_value.add_attribute("signext")
    function.attributes.add("nounwind")
    return function


def constant_global(module: ir.Module, name: str, value: ir.Constant) -> ir.GlobalVariable:
    """Return a global with a name derived from `name` that contains a constant, internal to this module."""
    made = ir.GlobalVariable(module, value.type, module.get_unique_name(name))
    made.initializer, made.global_constant, made.linkage = value, True, "internal"
    made.type = POINTER  # an opaque pointer, like all others
    return made


def static_array(module: ir.Module, name: str, nbytes: int, section: str = "") -> ir.GlobalVariable:
    """Return a zero-initialized static array in a section that linker scripts can place."""
    array = ir.GlobalVariable(module, ir.ArrayType(INT8, nbytes), name)
    array.initializer = ir.Constant(array.value_type, None)
    array.linkage = "internal"
    array.align = POOL_ALIGNMENT
    array.type = POINTER  # an opaque pointer, like all others
    if section:
        array.section = section
    return array


def _is_returned_in_memory(triple: str, result: ir.Type) -> bool:
    """Return whether the caller of a C function passes the address for the struct of pointers that it returns."""
    if not isinstance(result, ir.LiteralStructType):
        return False
    arch = architecture(triple)
    limit = next((size for start, size in _RETURNED_IN_REGISTERS.items() if arch.startswith(start)), 0)
    if "windows" in triple:
        limit = min(limit, _RETURNED_ON_WINDOWS)
    return len(result.elements) * _WORD_BYTES.get(arch, 4) > limit
