"""Lower a fused group to one loop-level function, built around its anchor operator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from mlfc.errors import InternalError, UnsupportedError
from mlfc.kernels.templates import FITTING
from mlfc.relay import ir as relay
from mlfc.relay.op import KERNEL_PREFIX, POINTWISE, Trait
from mlfc.relay.visitor import post_order
from mlfc.support import dims, dtypes
from mlfc.support.dims import Dim, maximum
from mlfc.target.features import Features, TemplateParameter
from mlfc.tir import builder as tb
from mlfc.tir import visitor
from mlfc.tir.bind import bind
from mlfc.tir.context import Context, Indices, Output, Reader, Tensor, buffer_of, computed, from_buffer
from mlfc.tir.extents import symbols_of
from mlfc.tir.fixed_point_lanes import WIDE, vectorize
from mlfc.tir.half_floats import half_blocks, widen_halves
from mlfc.tir.ir import Buffer, Call, Expr, Let, Load, PrimFunc, Stmt, Store
from mlfc.tir.load_ahead import load_ahead
from mlfc.tir.parameters import without_single_trips
from mlfc.tir.split_stores import split_stores
from mlfc.tir.tile_transposes import tile_transposes
from mlfc.tir.visitor import signature
from mlfc.transform.matching import flat_args, macs_of, operator_of

_NAME_LIMIT = 80


@dataclass(frozen=True)
class LoweredGroup:
    """A lowered group: its function, main operator, the parameters that it reads, and its constants."""

    prim: PrimFunc
    label: str
    used: tuple[int, ...]
    constants: tuple[npt.NDArray[Any], ...]
    parameters: Mapping[str, TemplateParameter] = field(default_factory=dict)  # of its template


def lower_group(function: relay.Function, features: Features) -> LoweredGroup:
    """Lower one fused group, with a variant for each CPU level.

    Raises UnsupportedError where the target or an operator requires static dimensions.
    """
    base = _lowered(function, features)
    same: dict[Features, LoweredGroup] = {replace(features, levels=()): base}
    others = {}
    for level, abilities in features.levels:
        group = same[abilities] = same.get(abilities) or _lowered(function, abilities)
        if group.used == base.used:
            others[level] = (group.prim, group.constants)
    prim, constants = with_variants((base.prim, base.constants), others)
    return replace(base, prim=prim, constants=constants)


def _lowered(function: relay.Function, features: Features) -> LoweredGroup:
    """Lower one fused group for one set of CPU features."""
    kinds = [kind for kind in (*function.type.params, function.body.type) if isinstance(kind, relay.TensorType)]
    symbols = dims.symbols_of([extent for kind in kinds for extent in kind.shape])
    lowering = _GroupLowering(function, features, binds=features.gpu)
    if not symbols:
        return lowering.run()
    try:
        if features.gpu:
            with suppress(dims.UndecidedError, TypeError):
                return lowering.run()
            # templates require static shapes: use plain loops, of which each work-item computes a few results
            plain = replace(features, gpu=False, vector_bytes=0, instruction_sets=())
            lowering = _GroupLowering(function, plain, binds=True)
        return lowering.run()
    except dims.UndecidedError as error:
        raise UnsupportedError(f"{lowering.names}: {error}", next_step=relay.FIX_EXTENT) from error
    except TypeError as error:
        cause = f"{lowering.names}: expected a static dimension, got {', '.join(map(str, symbols))}"
        raise UnsupportedError(cause, next_step=relay.FIX_EXTENT) from error


@dataclass(eq=False)
class _GroupLowering:
    """Lowering of one group; the tensors of its expressions are created on demand."""

    function: relay.Function
    features: Features
    binds: bool  # whether loops become kernel launches
    ctx: Context = field(init=False)
    tensors: dict[int, Tensor] = field(default_factory=dict)
    store_indices: Indices = ()
    store_shape: tuple[int, ...] = ()
    let_cache: dict[int, Expr] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ctx = Context(self.features)
        tuned = self.features.tuned
        if tuned is not None and (key := kernel_key(self.function)) is not None:
            self.ctx.choices, self.ctx.packing = tuned.kernels.get(key, {}), tuned.packing.get(key, {})
        self.calls = [expr for expr in post_order(self.function.body) if isinstance(expr, relay.Call)]
        self.uses = Counter(id(arg) for call in self.calls for arg in flat_args(call))

    @property
    def names(self) -> str:
        """The names of the operators, joined by "and"."""
        return " and ".join(dict.fromkeys(operator_of(call).name for call in self.calls))

    def run(self) -> LoweredGroup:
        emitters = [call for call in self.calls if operator_of(call).emit is not None]
        if len(emitters) > 1:
            names = ", ".join(operator_of(call).name for call in emitters)
            raise InternalError(f"a fused group has several anchor operators: {names}")
        body_type = relay.tensor_type(self.function.body)
        # pointwise operators on tensors of one shape run in one flat loop; scalars have no dimensions to merge
        flat = bool(body_type.shape) and all(
            operator_of(call).kind in POINTWISE and relay.tensor_type(call).shape == body_type.shape
            for call in self.calls
        )
        flat = flat and all(relay.tensor_type(param).shape == body_type.shape for param in self.function.params)
        constants = [arg for call in self.calls for arg in flat_args(call) if isinstance(arg, relay.Constant)]
        flat = flat and not emitters and all(constant.data.size == 1 for constant in constants)
        inputs = []
        for param in self.function.params:
            kind = relay.tensor_type(param)
            shape = (kind.size,) if flat else kind.shape
            inputs.append(buffer_of(self.ctx.stmts.unique(param.name), shape, kind.dtype))
            self.tensors[id(param)] = from_buffer(inputs[-1])
        shape = (body_type.size,) if flat else body_type.shape
        output = buffer_of(self.ctx.stmts.unique("output"), shape, body_type.dtype)
        if emitters:
            self._emit(emitters[0], output)
        else:
            with self.ctx.loops(shape) as indices:
                self._store(output, indices, self._tensor(self.function.body, flat))
        return self._finish(inputs, output)

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
            bits = data.view(dtypes.to_numpy(dtypes.stored(dtype)))
            literal = tb.const(bits.reshape(()).item(), dtypes.stored(dtype))
            return Tensor(() if flat else data.shape, dtype, lambda _: literal, None, data)

        def read(indices: Indices) -> Expr:
            return tb.load(self.ctx.constant(expr.name or "table", data), indices)

        return Tensor(data.shape, dtype, read, None, data)

    def _computed(self, call: relay.Call, flat: bool) -> Tensor:
        operator = operator_of(call)
        kind = relay.tensor_type(call)
        if flat:
            kind = relay.TensorType((kind.size,), kind.dtype)
        if operator.compute is None:
            raise UnsupportedError(f"{operator.name} has no loop-level rule", place=call.span.place)
        args = [self._tensor(arg, flat) for arg in flat_args(call)]
        read: Reader = operator.compute(self.ctx, args, call.attrs, kind)
        shared = self.uses[id(call)] > 1

        def read_once(indices: Indices) -> Expr:
            # only at the element being stored: other reads may be guarded, as may reads of another shape
            # (padding after the data does not change the indices)
            if kind.shape != self.store_shape or not _same_indices(indices, self.store_indices):
                return read(indices)
            if id(call) not in self.let_cache:
                value = read(indices)
                # a rule may use its argument several times, so bind values that are not small as well
                bind = shared or (call is not self.function.body and not visitor.is_small(value))
                self.let_cache[id(call)] = self.ctx.stmts.let("value", value, value.dtype) if bind else value
            return self.let_cache[id(call)]

        return computed(kind.shape, kind.dtype, read_once)

    def _store(self, output: Buffer, indices: Indices, tensor: Tensor) -> None:
        self.store_indices, self.store_shape, self.let_cache = indices, output.shape, {}
        value = tensor.read(indices)
        is_plain = all(isinstance(extent, int) or extent.multiple for extent in output.shape)
        if not is_plain and not isinstance(value, Load):
            # gcc does not contract a product and a sum if an address with branches is computed in between
            value = self.ctx.stmts.let("value", value, value.dtype)
        self.ctx.stmts.store(output, indices, value)

    def _emit(self, emitter: relay.Call, output: Buffer) -> None:
        operator, kind = operator_of(emitter), relay.tensor_type(emitter)
        result, bias = self._absorbed_bias(emitter)
        cell: list[Expr] = []
        self.tensors[id(result)] = Tensor(kind.shape, kind.dtype, lambda _: cell[-1])

        def store(indices: Indices, value: Expr) -> None:
            trivial = result is self.function.body
            cell.append(value if trivial else self.ctx.stmts.let("value", value, dtypes.stored(kind.dtype)))
            self._store(output, list(indices), self._tensor(self.function.body))

        args = [self._tensor(arg) for arg in flat_args(emitter)]
        assert operator.emit is not None
        plain = output if emitter is self.function.body and output.dtype == kind.dtype else None
        operator.emit(self.ctx, args, emitter.attrs, Output(kind.shape, kind.dtype, store, bias, plain))

    def _absorbed_bias(self, emitter: relay.Call) -> tuple[relay.Call, npt.NDArray[Any] | None]:
        """Return the call that the emitter computes including an absorbed bias, and that bias."""
        users = [call for call in self.calls if any(arg is emitter for arg in call.args)]
        if not operator_of(emitter).takes_bias or len(users) != 1 or not relay.has_trait(users[0], Trait.BIAS):
            return emitter, None
        bias_add, rank = users[0], len(relay.tensor_type(emitter).shape)
        bias = bias_add.args[1]
        if not isinstance(bias, relay.Constant) or bias_add.attrs["axis"] % rank != rank - 1:
            return emitter, None
        return bias_add, bias.data

    def _finish(self, inputs: Sequence[Buffer], output: Buffer) -> LoweredGroup:
        body = self.ctx.stmts.finish()
        read = {id(load.buffer) for load in visitor.loads(body)}
        used = tuple(index for index, buffer in enumerate(inputs) if id(buffer) in read)
        kept = tuple(inputs[index] for index in used)
        fitted = self._fitted(body)
        kept_constants = {id(load.buffer) for load in visitor.loads(fitted)}
        constants = [(buffer, array) for buffer, array in self.ctx.constants if id(buffer) in kept_constants]
        names = [operator_of(call).name.replace(".", "_") for call in self.calls]
        plain = without_single_trips(body) if self.features.optimize == "size" else body
        prim = PrimFunc(
            f"{KERNEL_PREFIX}{'_'.join(names)}"[:_NAME_LIMIT].rstrip("_"), kept, tuple(item for item, _ in constants),
            output, tuple(self.ctx.scratch_buffers), fitted,
            inplace=tuple(index for index, buffer in enumerate(kept) if _shareable(plain, buffer, output)),
            macs=sum(macs_of(call) for call in self.calls),
            symbols=symbols_of((*kept, output, *self.ctx.scratch_buffers), body),
        )  # fmt: skip
        main = next((call for call in self.calls if operator_of(call).emit is not None), self.calls[0])
        label = operator_of(main).name.rpartition(".")[2]
        tuned = self.features.tuned
        if tuned is not None and self.ctx.choices:
            key = kernel_key(self.function) or ""
            tuned.used.add(key)
            misses = self.ctx.refused or set(self.ctx.choices) - set(self.ctx.parameters)
            if misses and not tuned.is_borrowed:
                tuned.refused.add(key)
        return LoweredGroup(prim, label, used, tuple(array for _, array in constants), self.ctx.parameters)

    def _fitted(self, body: Stmt) -> Stmt:
        """Return the body after the target's loop-level passes."""
        if self.binds:
            return bind(body, self.features.group_items)
        found = list(visitor.nodes(body))
        if any(node.dtype in dtypes.HALVES for node in found):
            body = widen_halves(body)
            body = half_blocks(body) if self.features.vector_bytes else body
        forms = WIDE.get(self.features.fixed_point_lanes)
        if forms and any(isinstance(node, Call) and node.name in forms.least for node in found):
            body = vectorize(body, forms, self.ctx)  # before the remaining stores are split for the C compiler
        if self.features.vector_bytes:
            body = body if self.features.optimize == "size" else tile_transposes(body)
            body = load_ahead(split_stores(body))
        for name in self.features.instruction_sets:
            body = FITTING.get(name)(body) if name in FITTING else body
        return body


def _same_indices(a: Indices, b: Indices) -> bool:
    return len(a) == len(b) and all(map(visitor.same_expr, a, b))


def _shareable(body: Stmt, buffer: Buffer, output: Buffer) -> bool:
    """Return whether each element of `buffer` is read only in the store of the output element at its offset."""
    if buffer.shape != output.shape or dtypes.nbytes(buffer.dtype) != dtypes.nbytes(output.dtype):
        return False
    for stmt in visitor.walk(body):
        reads = [node for node in visitor.own_nodes(stmt) if isinstance(node, Load) and node.buffer is buffer]
        if not reads:
            continue
        below = visitor.walk(stmt) if isinstance(stmt, (Let, Store)) else ()
        stores = [item for item in below if isinstance(item, Store) and item.buffer is output]
        if len(stores) != 1 or not all(_same_indices(read.indices, stores[0].indices) for read in reads):
            return False
    return True


Constants: TypeAlias = "tuple[npt.NDArray[Any], ...]"
Lowered: TypeAlias = "tuple[PrimFunc, Constants]"
"""A function and the values of its constants."""


def with_variants(base: Lowered, others: Mapping[str, Lowered]) -> Lowered:
    """Return a function with its variants for higher CPU levels, where they differ from it.

    The scratch is as large as the largest variant's; the output shares an input's memory only if all variants allow it.
    """
    prim, constants = base
    different = {
        level: other
        for level, other in others.items()
        if len(constants) != len(other[1])
        or not all(map(_is_equal, constants, other[1]))
        or signature(prim) != signature(other[0])
    }
    if not different:
        return base
    union = list(zip(prim.constants, constants, strict=True))
    places = {level: _places(union, other) for level, other in different.items()}
    prims = [prim, *(other for other, _ in different.values())]
    # a buffer after the base function's scratch for the bytes that the largest variant needs in addition
    end = 0 if not prim.scratch else prim.scratch_offsets[-1] + (prim.scratch[-1].nbytes + 63) // 64 * 64
    more = reduce(maximum, (other.scratch_bytes - end for other in prims[1:]), 0)
    needs_more = isinstance(more, Dim) or more > 0
    merged = replace(
        prim,
        constants=tuple(buffer for buffer, _ in union),
        scratch=(*prim.scratch, Buffer("more", (more,), "uint8", "scratch")) if needs_more else prim.scratch,
        inplace=tuple(place for place in prim.inplace if all(place in other.inplace for other in prims)),
        symbols=tuple({symbol: None for other in prims for symbol in other.symbols}),
    )
    variants = []
    for level, (other, _) in different.items():
        own = places[level]
        variant = replace(
            other,
            constants=tuple(own.get(index, buffer) for index, (buffer, _) in enumerate(union)),
            # if one variant has a workspace, all do
            scratch=other.scratch or merged.scratch[:1],
            inplace=merged.inplace,
            symbols=merged.symbols,
        )
        variants.append((level, variant))
    return replace(merged, variants=tuple(variants)), tuple(array for _, array in union)


def _is_equal(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> bool:
    """Return whether two arrays have the same elements, regardless of shape: each function declares its own."""
    if a is b:
        return True
    if a.dtype != b.dtype or a.size != b.size:
        return False
    first, second = (np.ascontiguousarray(item).reshape(-1).view(np.uint8) for item in (a, b))
    return np.array_equal(first, second)


def _places(union: list[tuple[Buffer, npt.NDArray[Any]]], other: Lowered) -> dict[int, Buffer]:
    """Return a function's constants by their index in `union`, to which missing ones are added."""
    places: dict[int, Buffer] = {}
    for buffer, array in zip(other[0].constants, other[1], strict=True):
        known = (index for index, (_, data) in enumerate(union) if index not in places and _is_equal(data, array))
        place = next(known, len(union))
        if place == len(union):
            union.append((buffer, array))
        places[place] = buffer
    return places


def kernel_facts(function: relay.Function) -> dict[str, Any] | None:
    """Return the operator, input types and attributes of a group's anchor; None if the group has none."""
    calls = (expr for expr in post_order(function.body) if isinstance(expr, relay.Call))
    emitter = next((call for call in calls if operator_of(call).emit is not None), None)
    if emitter is None:
        return None
    return {
        "operator": operator_of(emitter).name,
        "inputs": [str(arg.type) for arg in flat_args(emitter)],
        "attributes": {name: str(value) for name, value in sorted(emitter.attrs.items())},
    }


def key_of(facts: dict[str, Any]) -> str:
    """Return the canonical JSON text of `kernel_facts`."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def kernel_key(function: relay.Function) -> str | None:
    """Return the key of a fused group; None if it has no anchor operator."""
    facts = kernel_facts(function)
    return None if facts is None else key_of(facts)
