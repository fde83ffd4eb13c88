"""From the fused graph to a loop-level program: every group becomes one tir function.

The group's one operator with loops of its own (if it has one) is emitted by its rule; what comes before it
in the group is computed where it reads, what comes after it is computed where it stores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlfc.byoc.generator import generated, generator_of, subgraph_of
from mlfc.errors import InternalError, MlfcError, UnsupportedError
from mlfc.isa.dsp.narrow import narrow
from mlfc.isa.mve.lanes import vectorize
from mlfc.relay import ir as relay
from mlfc.relay.op import Kind, Operator
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.target.features import Features
from mlfc.tir import builder as tb
from mlfc.tir import visitor
from mlfc.tir.bind import bind
from mlfc.tir.bytes import split_bytes
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor, computed, from_buffer
from mlfc.tir.instance import without_single_trips
from mlfc.tir.ir import COPY, Buffer, Expr, KernelCall, Let, Load, PrimFunc, Program, Stmt, Store, Value
from mlfc.tir.load_ahead import load_ahead
from mlfc.transform.lower_tiled import TiledChain, TiledLowering

if TYPE_CHECKING:
    from mlfc.transform.places import Places

_POINTWISE = (Kind.ELEMENTWISE, Kind.BROADCAST)
_NAME_LIMIT = 80
_MAX_ELEMENTS = dtypes.limits("int32")[1]


@dataclass(frozen=True)
class LoweredGroup:
    """A fused group: its loop-level function and main operator, the parameters that it reads, its constants."""

    prim: PrimFunc
    label: str
    used: tuple[int, ...]
    constants: tuple[npt.NDArray[Any], ...]


def lower(
    module: relay.IRModule,
    features: Features,
    name: str = "default",
    tiled: TiledChain | None = None,
    known: dict[relay.Function, LoweredGroup] | None = None,
    places: Places | None = None,
) -> Program:
    """Lower a module whose ``main`` holds only Primitive functions and VIEW operators.

    Parameters
    ----------
    module : IRModule
        The result of fusion.
    features : Features
        What the target can do; that of the host, where there is a device beside it.
    name : str
        The program's name.
    tiled : TiledChain, optional
        Layers that are tiled by rows.
    known : dict, optional
        What groups of the same module and features were lowered to, to be used and added to.
    places : Places, optional
        What runs on a device, if there is one.

    Returns
    -------
    Program
        Equal kernels appear once. Before a kernel reads a tensor that lies elsewhere, a call copies it: each tensor
        once. Constants lie wherever they are read.
    """
    return _ProgramBuilder(features, tiled, {} if known is None else known, places).build(module, name)


def lower_group(function: relay.Function, features: Features) -> LoweredGroup:
    """Lower one fused group."""
    return _GroupLowering(function, features).run()


def lower_external(function: relay.Function, features: Features) -> LoweredGroup:
    """Let the external code generator of a subgraph make its code."""
    generator = generator_of(function)
    if generator is None:
        raise InternalError("a subgraph of no external code generator")
    subgraph = subgraph_of(function, features)
    body = generated(generator, subgraph)
    prim = PrimFunc(
        name=f"{generator.name}_{subgraph.name}",
        inputs=subgraph.inputs,
        constants=tuple(buffer for buffer, _ in subgraph.constants),
        output=subgraph.output,
        scratch=tuple(subgraph.scratch_buffers),
        body=body,
        macs=sum(map(_macs, subgraph.calls())),
    )
    used = tuple(range(len(subgraph.inputs)))
    return LoweredGroup(prim, subgraph.name, used, tuple(array for _, array in subgraph.constants))


class _ProgramBuilder:
    def __init__(
        self,
        features: Features,
        tiled: TiledChain | None,
        known: dict[relay.Function, LoweredGroup],
        places: Places | None,
    ) -> None:
        self._features = features
        self._tiled = tiled
        self._known = known
        self._places = places
        self._tiled_calls = {id(layer.call) for layer in tiled.layers} if tiled else set()
        self._values: dict[int, Value] = {}
        self._kernels: dict[str, PrimFunc] = {}
        self._names: dict[str, int] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes, str | None], Value] = {}
        self._copies: dict[tuple[Value, str | None], Value] = {}
        self._calls: list[KernelCall] = []
        self._jumps = False

    def build(self, module: relay.IRModule, name: str) -> Program:
        main = module.main
        heads = main.body.fields if isinstance(main.body, relay.Tuple) else (main.body,)
        names = module.output_names or tuple(f"output{i}" if len(heads) > 1 else "output" for i in range(len(heads)))
        inputs = tuple(
            self._declare(param, param.name, "input", device=self._places.device_of(param) if self._places else None)
            for param in main.params
        )
        claims = self._claim(heads, names)
        for expr in post_order(main.body):
            if id(expr) not in self._values:
                self._visit(expr, claims.get(id(expr)))
        outputs = tuple(self._output(head, title, claims) for head, title in zip(heads, names, strict=True))
        read = {value.root for call in self._calls for value in (*call.inputs, *call.constants)}
        constants = tuple(value for value in self._constants.values() if value in read)
        return Program(
            name, inputs, outputs, constants, tuple(self._kernels.values()), tuple(self._calls),
            {"contract_floats": not self._jumps, "overlap": not self._features.vector_bytes and self._places is None},
        )  # fmt: skip

    def _declare(
        self, expr: relay.Expr, name: str, kind: str, alias_of: Value | None = None, device: str | None = None
    ) -> Value:
        kind_of = relay.tensor_type(expr)
        elements = math.prod(kind_of.shape)
        if elements > _MAX_ELEMENTS:
            raise UnsupportedError(
                f"the tensor '{name}' has {elements:,} elements, more than the {_MAX_ELEMENTS:,} that C code of 32-bit "
                "indices reaches",
                place=_place(expr),
            )
        value = Value(name, kind_of.shape, kind_of.dtype, kind, None, alias_of, device=device)
        self._values[id(expr)] = value
        return value

    def _claim(self, heads: Sequence[relay.Expr], names: Sequence[str]) -> dict[int, str]:
        """Give each output's storage to the expression that computes its bytes, where that is a kernel."""
        claims: dict[int, str] = {}
        for head, name in zip(heads, names, strict=True):
            owner = storage_owner(head)
            if isinstance(owner, relay.Call) and id(owner) not in claims:
                claims[id(owner)] = name
        return claims

    def _output(self, head: relay.Expr, name: str, claims: dict[int, str]) -> Value:
        value = self._values[id(head)]
        if claims.get(id(storage_owner(head))) == name:
            root = value.root
            return value if value is root else replace(value, name=name, kind="output", alias_of=root)
        return self._copy(value, name)

    def _copy(self, value: Value, name: str) -> Value:
        """Add a kernel that copies a value which is already an input, a constant or another output."""
        output = Value(name, value.shape, value.dtype, "output")
        self._calls.append(self._kernel_call(self._copying(value), [value], output, ()))
        return output

    def _copying(self, value: Value) -> LoweredGroup:
        param = relay.Var("source", relay.TensorType(value.shape, value.dtype))
        group = relay.Function((param,), relay.call("copy", [param]), {"Primitive": 1})
        return lower_group(group, self._features)

    def _on(self, value: Value, device: str | None) -> Value:
        """Return a value as it lies on a device: itself, the same constant there, or the copy that a call makes."""
        root = value.root
        if root.device == device:
            return value
        if (root, device) not in self._copies:
            if root.data is not None:
                twin = self._constant(root.name, root.data, device)
            else:
                twin = Value(root.name, root.shape, root.dtype, "intermediate", device=device)
                kernel = replace(self._copying(root).prim, name=COPY, inplace=())
                self._calls.append(KernelCall(kernel, (root,), (), twin))
            self._copies[root, device] = twin
        twin = self._copies[root, device]
        if value is root:
            return twin
        return replace(value, kind=twin.kind, alias_of=twin, start=value.root_start, device=device)

    def _visit(self, expr: relay.Expr, output_name: str | None) -> None:
        if isinstance(expr, relay.Constant):
            self._values[id(expr)] = self._constant(expr.name or "constant", expr.data)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, Operator):
            if expr.op.kind is not Kind.VIEW:
                raise InternalError(f"{expr.op.name} was left outside every fused group", place=_place(expr))
            source = self._values[id(expr.args[0])]
            self._declare(expr, expr.span.tensor or source.name, source.kind, source, source.device)
        elif id(expr) in self._tiled_calls:
            self._visit_tiled(expr, output_name)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, relay.Function):
            self._visit_group(expr, expr.op, output_name)
        elif not isinstance(expr, (relay.Tuple, relay.Function, relay.Var)):
            raise InternalError(f"a {type(expr).__name__} was left in the fused graph", place=_place(expr))

    def _visit_group(self, expr: relay.Call, function: relay.Function, output_name: str | None) -> None:
        self._note_jumps(function)
        placed = self._places.groups.get(expr) if self._places else None
        group = self._group(function, expr) if placed is None else placed
        output = self._declare_result(expr, output_name, group.prim.name, group.prim.device)
        args = [self._values[id(arg)] for arg in expr.args]
        self._calls.append(self._kernel_call(group, args, output, expr.span.nodes))

    def _declare_result(
        self, expr: relay.Expr, output_name: str | None, otherwise: str, device: str | None = None
    ) -> Value:
        if output_name is not None:  # which may be empty
            return self._declare(expr, output_name, "output", device=device)
        nodes = expr.span.nodes
        name = expr.span.tensor or (nodes[-1] if nodes else otherwise)
        return self._declare(expr, name, "intermediate", device=device)

    def _note_jumps(self, function: relay.Function) -> None:
        inside = [call for call in post_order(function.body) if isinstance(call, relay.Call)]
        self._jumps = self._jumps or any(_operator(call).jumps for call in inside)

    def _group(self, function: relay.Function, expr: relay.Expr) -> LoweredGroup:
        try:
            if function not in self._known:
                lowered = lower_external if "Compiler" in function.attrs else lower_group
                self._known[function] = lowered(function, self._features)
                self._check_doubles(self._known[function].prim)
            return self._known[function]
        except MlfcError as error:
            if error.place is None:
                error.place = _place(expr)
            raise

    def _check_doubles(self, prim: PrimFunc) -> None:
        if not self._features.wide_double and visitor.mentions(prim, "float64"):
            raise UnsupportedError(
                "this computes with float64, and a double of the target has 32 bits",
                next_step="Convert the model to float32, or quantize it",
            )

    def _visit_tiled(self, expr: relay.Expr, output_name: str | None) -> None:
        """Lower the whole chain where its last layer stands."""
        assert self._tiled is not None
        layers = self._tiled.layers
        if expr is not layers[-1].call:
            return
        result = self._declare_result(expr, output_name, "stage")

        def emit(function: relay.Function, source: Value, output: Value, nodes: tuple[str, ...]) -> None:
            self._note_jumps(function)
            self._calls.append(self._kernel_call(self._group(function, expr), [source], output, nodes))

        TiledLowering(self._tiled, emit).run(self._values[id(layers[0].call.args[0])], result)

    def _kernel_call(
        self, group: LoweredGroup, args: Sequence[Value], output: Value, nodes: tuple[str, ...]
    ) -> KernelCall:
        key = visitor.signature(group.prim)
        if key not in self._kernels:
            self._kernels[key] = replace(group.prim, name=self._unique(group.prim.name))
        label = f"{group.label}_{len(self._calls)}"
        device = group.prim.device
        constants = [
            self._constant(f"{label}_{buffer.name}", array, device)
            for buffer, array in zip(group.prim.constants, group.constants, strict=True)
        ]
        inputs = tuple(self._on(args[index], device) for index in group.used)
        return KernelCall(self._kernels[key], inputs, tuple(constants), output, nodes)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self._unique(f"{name}_{count}")

    def _constant(self, name: str, array: npt.NDArray[Any], device: str | None = None) -> Value:
        dtype = dtypes.from_numpy(array.dtype)
        key = (dtype, array.shape, array.tobytes() if array.size < 64 else _digest(array), device)
        if key not in self._constants:
            self._constants[key] = Value(name, array.shape, dtype, "constant", array, device=device)
        return self._constants[key]


def _digest(array: npt.NDArray[Any]) -> bytes:
    from hashlib import sha256

    return sha256(np.ascontiguousarray(array).data).digest()


def storage_owner(expr: relay.Expr) -> relay.Expr:
    """Return the expression whose bytes `expr` is, looking through views."""
    while isinstance(expr, relay.Call) and isinstance(expr.op, Operator) and expr.op.kind is Kind.VIEW:
        expr = expr.args[0]
    return expr


def _place(expr: relay.Expr) -> str | None:
    return ", ".join(expr.span.nodes) or None


@dataclass(eq=False)
class _GroupLowering:
    """The lowering of one group: tensors of its expressions, made on demand."""

    function: relay.Function
    features: Features
    ctx: Context = field(init=False)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    store_indices: Indices = ()
    store_shape: tuple[int, ...] = ()
    let_cache: dict[int, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ctx = Context(self.features)
        self.calls = [expr for expr in post_order(self.function.body) if isinstance(expr, relay.Call)]
        self.uses: dict[int, int] = {}
        for call in self.calls:
            for arg in _flat_args(call):
                self.uses[id(arg)] = self.uses.get(id(arg), 0) + 1

    def run(self) -> LoweredGroup:
        emitters = [call for call in self.calls if _operator(call).emit is not None]
        if len(emitters) > 1:
            names = ", ".join(_operator(call).name for call in emitters)
            raise InternalError(f"a fused group has several operators with loops of their own: {names}")
        body_type = relay.tensor_type(self.function.body)
        # scalars have no dimensions to merge
        flat = not emitters and bool(body_type.shape) and self._is_flat()
        inputs = tuple(self._input(param, flat) for param in self.function.params)
        shape = (body_type.size,) if flat else body_type.shape
        output = Buffer(self.ctx.stmts.unique("output"), shape, body_type.dtype)
        if emitters:
            self._emit(emitters[0], output)
        else:
            with self.ctx.loops(shape) as indices:
                self._store(output, indices, self._final(flat))
        return self._finish(inputs, output)

    def _is_flat(self) -> bool:
        """Tell whether the group is the same arithmetic for each element of equally shaped tensors."""
        shape = relay.tensor_type(self.function.body).shape
        same = all(relay.tensor_type(param).shape == shape for param in self.function.params)
        pointwise = all(
            _operator(call).kind in _POINTWISE and relay.tensor_type(call).shape == shape for call in self.calls
        )
        constants = [arg for call in self.calls for arg in _flat_args(call) if isinstance(arg, relay.Constant)]
        return same and pointwise and all(constant.data.size == 1 for constant in constants)

    def _input(self, param: relay.Var, flat: bool) -> Buffer:
        kind = relay.tensor_type(param)
        buffer = Buffer(self.ctx.stmts.unique(param.name), (kind.size,) if flat else kind.shape, kind.dtype)
        self.tensors[id(param)] = from_buffer(buffer)
        return buffer

    def _tensor(self, expr: relay.Expr, flat: bool = False) -> Tensor:
        if id(expr) not in self.tensors:
            if isinstance(expr, relay.Constant):
                self.tensors[id(expr)] = self._constant(expr, flat)
            elif isinstance(expr, relay.Call):
                self.tensors[id(expr)] = self._computed(expr, flat)
            else:
                raise InternalError(f"a {type(expr).__name__} inside a fused group")
        return self.tensors[id(expr)]

    def _constant(self, expr: relay.Constant, flat: bool) -> Tensor:
        data, dtype = expr.data, expr.type.dtype
        if data.size == 1:
            literal = tb.const(data.reshape(()).item(), dtype)
            return Tensor(() if flat else data.shape, dtype, lambda _: literal, None, data)

        def read(indices: Indices) -> Expr:
            return tb.load(self.ctx.constant(expr.name or "table", data), indices)

        return Tensor(data.shape, dtype, read, None, data)

    def _computed(self, call: relay.Call, flat: bool) -> Tensor:
        operator = _operator(call)
        kind = relay.tensor_type(call)
        if flat:
            kind = relay.TensorType((kind.size,), kind.dtype)
        if operator.compute is None:
            raise UnsupportedError(f"{operator.name} has no loop-level rule", place=_place(call))
        args = [self._tensor(arg, flat) for arg in _flat_args(call)]
        read: Reader = operator.compute(self.ctx, args, call.attrs, kind)
        shared = self.uses.get(id(call), 0) > 1

        def read_once(indices: Indices) -> Expr:
            # only at the element being stored: elsewhere the read may stand under a guard, as it may where
            # the shapes differ (padding behind the data leaves the indices as they are)
            if kind.shape != self.store_shape or not _same_indices(indices, self.store_indices):
                return read(indices)
            if id(call) not in self.let_cache:
                value = read(indices)
                # a rule may name its argument several times, so what is not small gets a name too
                bind = shared or (call is not self.function.body and not visitor.is_small(value))
                self.let_cache[id(call)] = self.ctx.stmts.let("value", value, kind.dtype) if bind else value
            return self.let_cache[id(call)]

        return computed(kind.shape, kind.dtype, read_once)

    def _final(self, flat: bool = False) -> Tensor:
        return self._tensor(self.function.body, flat)

    def _store(self, output: Buffer, indices: Indices, tensor: Tensor) -> None:
        self.store_indices, self.store_shape, self.let_cache = indices, output.shape, {}
        self.ctx.stmts.store(output, indices, tensor.read(indices))

    def _emit(self, emitter: relay.Call, output: Buffer) -> None:
        operator, kind = _operator(emitter), relay.tensor_type(emitter)
        result, bias = self._absorbed_bias(emitter)
        cell: list[Expr] = []
        self.tensors[id(result)] = Tensor(kind.shape, kind.dtype, lambda _: cell[-1])

        def store(indices: Indices, value: Expr) -> None:
            trivial = result is self.function.body
            cell.append(value if trivial else self.ctx.stmts.let("value", value, kind.dtype))
            self._store(output, list(indices), self._final())

        args = [self._tensor(arg) for arg in _flat_args(emitter)]
        assert operator.emit is not None
        operator.emit(self.ctx, args, emitter.attrs, Output(kind.shape, kind.dtype, store, bias))

    def _absorbed_bias(self, emitter: relay.Call) -> tuple[relay.Call, npt.NDArray[Any] | None]:
        """Return the expression that the emitter computes once it takes the bias, and that bias."""
        users = [call for call in self.calls if any(arg is emitter for arg in call.args)]
        if not _operator(emitter).takes_bias or len(users) != 1 or relay.op_name(users[0]) != "nn.bias_add":
            return emitter, None
        bias_add, rank = users[0], len(relay.tensor_type(emitter).shape)
        bias = bias_add.args[1]
        if not isinstance(bias, relay.Constant) or bias_add.attrs["axis"] % rank != rank - 1:
            return emitter, None
        return bias_add, bias.data

    def _finish(self, inputs: tuple[Buffer, ...], output: Buffer) -> LoweredGroup:
        body = self.ctx.stmts.finish()
        read = {id(load.buffer) for load in visitor.loads(body)}
        used = tuple(index for index, buffer in enumerate(inputs) if id(buffer) in read)
        kept = tuple(inputs[index] for index in used)
        constants = [(buffer, array) for buffer, array in self.ctx.constants if id(buffer) in read]
        names = [_operator(call).name.replace(".", "_") for call in self.calls]
        plain = without_single_trips(body) if self.features.optimize == "size" else body
        prim = PrimFunc(
            name="_".join(["fused", *names])[:_NAME_LIMIT].rstrip("_"),
            inputs=kept,
            constants=tuple(buffer for buffer, _ in constants),
            output=output,
            scratch=tuple(self.ctx.scratch_buffers),
            body=self._fitted(body),
            inplace=tuple(index for index, buffer in enumerate(kept) if _shareable(plain, buffer, output)),
            macs=sum(_macs(call) for call in self.calls),
        )
        main = next((call for call in self.calls if _operator(call).emit is not None), self.calls[0])
        label = _operator(main).name.rpartition(".")[2]
        return LoweredGroup(prim, label, used, tuple(array for _, array in constants))

    def _fitted(self, body: Stmt) -> Stmt:
        """Return the body in the form that suits the target."""
        if self.features.gpu:
            return bind(body, self.features.group_items)
        if self.features.vector_bytes:
            return load_ahead(split_bytes(body))
        if self.features.mve:
            return vectorize(body)
        return narrow(body) if self.features.dsp else body


def _operator(call: relay.Call) -> Operator:
    if not isinstance(call.op, Operator):
        raise InternalError("a fused group calls something that is not an operator")
    return call.op


def _flat_args(call: relay.Call) -> list[relay.Expr]:
    """Return the arguments with tuples spelled out, as the rules of variadic operators take them."""
    flat: list[relay.Expr] = []
    for arg in call.args:
        flat.extend(arg.fields if isinstance(arg, relay.Tuple) else (arg,))
    return flat


def _macs(call: relay.Call) -> int:
    operator = _operator(call)
    return operator.macs([arg.type for arg in call.args], call.attrs, call.type) if operator.macs else 0


def _same_indices(a: Indices, b: Indices) -> bool:
    return len(a) == len(b) and all(map(visitor.same_expr, a, b))


def _shareable(body: Stmt, buffer: Buffer, output: Buffer) -> bool:
    """Tell whether every read of `buffer` happens in the store of the output element at the same byte."""
    if buffer.shape != output.shape or dtypes.nbytes(buffer.dtype) != dtypes.nbytes(output.dtype):
        return False
    for stmt in visitor.walk(body):
        reads = [
            node
            for expr in visitor.own_exprs(stmt)
            for node in visitor.walk_expr(expr)
            if isinstance(node, Load) and node.buffer is buffer
        ]
        if not reads:
            continue
        below = visitor.walk(stmt) if isinstance(stmt, (Let, Store)) else ()
        stores = [item for item in below if isinstance(item, Store) and item.buffer is output]
        if len(stores) != 1 or not all(_same_indices(read.indices, stores[0].indices) for read in reads):
            return False
    return True
