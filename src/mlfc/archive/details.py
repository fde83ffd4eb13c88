"""Makes a module's `ModuleInfo`: what the format has no place for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mlfc import memory
from mlfc.codegen import GeneratedCode
from mlfc.codegen.call_info import call_info
from mlfc.support.content import ArrayContent, sha256_of_each
from mlfc.support.dim_estimates import most
from mlfc.support.dims import is_static
from mlfc.support.module_info import (
    CallInfo,
    ConstantInfo,
    ModuleInfo,
    NamedBytes,
    PeakInfo,
)
from mlfc.support.version import __version__
from mlfc.tir.dataflow import Dataflow
from mlfc.tir.program import KernelCall, Value

if TYPE_CHECKING:
    from mlfc.factory import Factory

AOT, GRAPH, VM = "aot", "graph", "vm"
_PEAK_TENSORS = 5
_MOST_SHAPE = 2_000  # characters: expressions of extents may be long

_hashes: WeakKeyDictionary[Value, str] = WeakKeyDictionary()


def module_info(factory: Factory, code: GeneratedCode | None = None) -> ModuleInfo:
    """Return what running and describing a module takes; `code` is that of a module linked with others."""
    code = code or factory.code
    return ModuleInfo.of(
        factory.interface(code),
        version=__version__,
        numerics=factory.module.numerics,
        optimize=factory.optimize,
        operators=_operators(factory, code),
        parameters=sum(int(array.size) for array in factory.source_params.values()),
        peak=_peak(factory, code),
        source=dict(factory.module.source),
    )


def full_module_info(factory: Factory, code: GeneratedCode | None = None) -> ModuleInfo:
    """Return `module_info` with what checking and comparing takes: the plan, and the constants, each content once."""
    has_plan = factory.executor == AOT or (factory.executor == VM and bool(factory.plan.live))
    plan = memory.blocks(factory.program, factory.plan) if has_plan else None
    return replace(module_info(factory, code), plan=plan, constants=constants(factory))


def _operators(factory: Factory, code: GeneratedCode) -> tuple[CallInfo, ...]:
    flow = Dataflow(factory.program)
    given = flow.given_by_calls()
    return tuple(
        replace(_operator(factory, code, index, call), reads=flow.read_by(index), outputs=given.get(index, ()))
        for index, call in enumerate(factory.program.calls)
    )


def _operator(factory: Factory, code: GeneratedCode, index: int, call: KernelCall) -> CallInfo:
    known = call_info(call, code.function_of(call.kernel.name))
    return CallInfo(
        **{item.name: getattr(known, item.name) for item in fields(known)},
        # a device's scratch is among the tensors of the graph
        workspace_bytes=most(call.kernel.scratch_bytes) if call.kernel.device is None else 0,
        shapes=_shapes(call),
        live_bytes=factory.plan.live[index] if factory.plan.live else None,
        device=(call.output.root.device or "cpu") if code.device else None,
    )


def _shapes(call: KernelCall) -> tuple[str, ...]:
    """Return the types of what a call reads and writes, if an extent is open."""
    values = (*call.inputs, *call.constants, call.output)
    if is_static(extent for value in values for extent in value.shape):
        return ()
    return tuple(f"{value.dtype}[{', '.join(map(str, value.shape))}]"[:_MOST_SHAPE] for value in values)


def _peak(factory: Factory, code: GeneratedCode) -> PeakInfo | None:
    plan = factory.plan
    if plan.peak_call is None or not plan.lower_bound:
        return None
    call, live = factory.program.calls[plan.peak_call], plan.live[plan.peak_call]
    tensors = memory.live_tensors(factory.program, plan, plan.peak_call)
    largest = tuple(NamedBytes(name, size) for name, size in tensors[:_PEAK_TENSORS])
    return PeakInfo(code.function_of(call.kernel.name), tuple(call.nodes), live, largest)


def constants(factory: Factory) -> tuple[ConstantInfo, ...]:
    """Return what the module's constants are, each content once, in the order of first use."""
    if factory.executor == GRAPH:
        named = factory.graph_constants
        _hash_contents(named.values())
        return tuple(_constant(name, value, value.name) for name, value in named.items())
    used = factory.unit.used_constants()
    _hash_contents(used)
    distinct: dict[tuple[str, str], Value] = {}
    for value in used:
        distinct.setdefault((value.dtype, content_hash(value)), value)
    return tuple(_constant(value.name, value) for value in distinct.values())


def _constant(name: str, value: Value, source: str | None = None) -> ConstantInfo:
    return ConstantInfo(name, value.nbytes, value.dtype, tuple(value.shape), content_hash(value), source)


def content_hash(value: Value) -> str:
    """Return the SHA-256 of a constant's bytes as files hold them; hashed once, however often it is asked for."""
    if value not in _hashes:
        _hash_contents([value])
    return _hashes[value]


def _hash_contents(values: Iterable[Value]) -> None:
    """Hash constants that have not been hashed, large ones side by side."""
    unknown = [value for value in values if value not in _hashes]
    _hashes.update(zip(unknown, sha256_of_each([ArrayContent(value.array) for value in unknown]), strict=True))
