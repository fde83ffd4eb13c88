"""Lowering of fused groups to kernel calls: values, constants and kernels of a program."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt

from mlfc.byoc.generator import generated, generator_of, subgraph_of
from mlfc.errors import InternalError, MlfcError, UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.op import Kind, Operator
from mlfc.support import dtypes
from mlfc.support.dims import bounds
from mlfc.target.features import Features
from mlfc.tir import visitor
from mlfc.tir.extents import symbols_of
from mlfc.tir.ir import PrimFunc
from mlfc.tir.program import COPY, Instruction, KernelCall, Value
from mlfc.transform.device_placement import DevicePlacement
from mlfc.transform.lower_group import LoweredGroup, lower_group
from mlfc.transform.matching import macs_of
from mlfc.transform.row_tiling import TiledChain, TiledLowering

_MAX_ELEMENTS = dtypes.limits("int32")[1]


@dataclass(eq=False)
class CallBuilder:
    """Builder of the kernels, constants and instructions of a program."""

    _features: Features
    _tiled: TiledChain | None
    _cache: dict[relay.Function, LoweredGroup]
    _placement: DevicePlacement | None
    # whether the executor allocates tensors and copies them between devices at run time; otherwise each value is on one
    # device, and calls copy it to others
    _dynamic: bool
    _values: dict[relay.Expr, Value] = field(default_factory=dict, init=False)
    _kernels: dict[str, PrimFunc] = field(default_factory=dict, init=False)
    _kernel_of: dict[PrimFunc, PrimFunc] = field(default_factory=dict, init=False)
    _names: dict[str, int] = field(default_factory=dict, init=False)
    _constants: dict[tuple[str, tuple[int, ...], bytes, str | None], Value] = field(default_factory=dict, init=False)
    _copies: dict[tuple[Value, str | None], Value] = field(default_factory=dict, init=False)
    _instructions: list[Instruction] = field(default_factory=list, init=False)
    _num_calls: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._tiled_calls = {layer.call for layer in self._tiled.layers} if self._tiled else set()

    def _add(self, call: KernelCall) -> None:
        self._instructions.append(call)
        self._num_calls += 1

    def _declare(
        self, expr: relay.Expr, name: str, kind: str, alias_of: Value | None = None, device: str | None = None
    ) -> Value:
        kind_of = relay.tensor_type(expr)
        elements = bounds(math.prod(kind_of.shape))[0]
        if elements > _MAX_ELEMENTS:
            raise UnsupportedError(
                f"the tensor '{name}' has {elements:,} elements, more than the {_MAX_ELEMENTS:,} that 32-bit indices "
                "can address",
                place=expr.span.place,
            )
        value = Value(name, kind_of.shape, kind_of.dtype, kind, None, alias_of, device=device)
        self._values[expr] = value
        return value

    def _copy_call(self, value: Value, target: Value) -> KernelCall:
        """Return a call that copies a value to memory of the same size, which may be on another device."""
        group = self._copying(value)
        if value.root.device is None and target.device is None:
            return self._kernel_call(group, [value], target, ())
        return KernelCall(replace(group.prim, name=COPY, inplace=()), (value,), (), target)

    def _copying(self, value: Value) -> LoweredGroup:
        param = relay.Var("source", relay.TensorType(value.shape, value.dtype))
        group = relay.Function((param,), relay.call("copy", [param]), {"Primitive": 1})
        return lower_group(group, self._features)

    def _on(self, value: Value, device: str | None) -> Value:
        """Return a value on a device: the value itself, the same constant on that device, or a copy made by a call."""
        root = value.root
        if self._dynamic or root.device == device:
            return value
        if (root, device) not in self._copies:
            if root.data is not None:
                twin = self._constant(root.name, root.data, device)
            else:
                twin = Value(root.name, root.shape, root.dtype, "intermediate", device=device)
                self._add(self._copy_call(root, twin))
            self._copies[root, device] = twin
        twin = self._copies[root, device]
        if value is root:
            return twin
        return replace(value, kind=twin.kind, alias_of=twin, start=value.root_start, device=device)

    def _visit(self, expr: relay.Expr, output_name: str | None) -> None:
        if isinstance(expr, relay.Constant):
            self._values[expr] = self._constant(expr.name or "constant", expr.data)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, Operator):
            if expr.op.kind is not Kind.VIEW:
                raise InternalError(f"{expr.op.name} was left outside every fused group", place=expr.span.place)
            source = self._values[expr.args[0]]
            self._declare(expr, expr.span.tensor or source.name, source.kind, source, source.device)
        elif expr in self._tiled_calls:
            self._visit_tiled(expr, output_name)
        elif isinstance(expr, relay.Call) and isinstance(expr.op, relay.Function):
            group = self._placement.groups.get(expr) if self._placement else None
            group = group or self._group(expr.op, expr)
            output = self._declare_result(expr, output_name, group.prim.name, group.prim.device)
            args = [self._values[arg] for arg in expr.args]
            self._add(self._kernel_call(group, args, output, expr.span.nodes))
        elif not isinstance(expr, (relay.Tuple, relay.Function, relay.Var)):
            raise InternalError(f"a {type(expr).__name__} was left in the fused graph", place=expr.span.place)

    def _declare_result(
        self, expr: relay.Expr, output_name: str | None, otherwise: str, device: str | None = None
    ) -> Value:
        if output_name is not None:  # it may be empty
            return self._declare(expr, output_name, "output", device=device)
        nodes = expr.span.nodes
        name = expr.span.tensor or (nodes[-1] if nodes else otherwise)
        return self._declare(expr, name, "intermediate", device=device)

    def _group(self, function: relay.Function, expr: relay.Expr) -> LoweredGroup:
        try:
            if function not in self._cache:
                lowered = lower_external if "Compiler" in function.attrs else lower_group
                group = self._cache[function] = lowered(function, self._features)
                if not self._features.wide_double and visitor.mentions(group.prim, "float64"):
                    raise UnsupportedError(
                        "the model computes with float64, but double has 32 bits on the target",
                        next_step="Convert the model to float32, or quantize it",
                    )
            return self._cache[function]
        except MlfcError as error:
            if error.place is None:
                error.place = expr.span.place
            raise

    def _visit_tiled(self, expr: relay.Expr, output_name: str | None) -> None:
        """Lower the whole tiled chain when its last layer is visited."""
        assert self._tiled is not None
        layers = self._tiled.layers
        if expr is not layers[-1].call:
            return
        result = self._declare_result(expr, output_name, "stage")

        def emit(function: relay.Function, source: Value, output: Value, nodes: tuple[str, ...]) -> None:
            self._add(self._kernel_call(self._group(function, expr), [source], output, nodes))

        TiledLowering(self._tiled, emit).run(self._values[layers[0].call.args[0]], result)

    def _kernel_call(
        self, group: LoweredGroup, args: Sequence[Value], output: Value, nodes: tuple[str, ...]
    ) -> KernelCall:
        kernel = self._kernel_of.get(group.prim)
        if kernel is None:
            key = visitor.signature(group.prim)
            if key not in self._kernels:
                self._kernels[key] = replace(group.prim, name=self._unique(group.prim.name))
            kernel = self._kernel_of[group.prim] = self._kernels[key]
        label = f"{group.label}_{self._num_calls}"
        device = group.prim.device
        constants = [
            self._constant(f"{label}_{buffer.name}", array, device)
            for buffer, array in zip(group.prim.constants, group.constants, strict=True)
        ]
        inputs = tuple(self._on(args[index], device) for index in group.used)
        numbers = tuple(symbol.dim for symbol in kernel.symbols)
        return KernelCall(kernel, inputs, tuple(constants), output, nodes, numbers)

    def _unique(self, name: str) -> str:
        count = self._names.get(name, 0)
        self._names[name] = count + 1
        return name if count == 0 else self._unique(f"{name}_{count}")

    def _constant(self, name: str, array: npt.NDArray[Any], device: str | None = None) -> Value:
        dtype = dtypes.from_numpy(array.dtype)
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)  # NumPy cannot export bfloat16 buffers
        digest = sha256(content.data).digest() if array.size >= 64 else array.tobytes()
        key = (dtype, array.shape, digest, None if self._dynamic else device)
        if key not in self._constants:
            self._constants[key] = Value(name, array.shape, dtype, "constant", array, device=key[-1])
        return self._constants[key]


def lower_external(function: relay.Function, features: Features) -> LoweredGroup:
    """Lower a subgraph by its external code generator."""
    generator = generator_of(function)
    if generator is None:
        raise InternalError("the subgraph has no external code generator")
    subgraph = subgraph_of(function, features)
    body = generated(generator, subgraph)
    prim = PrimFunc(
        name=f"{generator.name}_{subgraph.name}",
        inputs=subgraph.inputs,
        constants=tuple(buffer for buffer, _ in subgraph.constants),
        output=subgraph.output,
        scratch=tuple(subgraph.scratch_buffers),
        body=body,
        macs=sum(map(macs_of, subgraph.calls())),
        # a runtime module reads dimensions from its arguments
        symbols=() if body.module is not None else symbols_of((*subgraph.inputs, subgraph.output), body),
    )
    used = tuple(range(len(subgraph.inputs)))
    return LoweredGroup(prim, subgraph.name, used, tuple(array for _, array in subgraph.constants))
