"""Construction of a module's `ModuleInfo`, which contains facts without a field in the format."""

from __future__ import annotations

from dataclasses import fields, replace
from weakref import WeakKeyDictionary

from mlfc import memory
from mlfc.codegen import GeneratedCode
from mlfc.factory import Factory, call_info
from mlfc.support.content import ArrayContent, sha256_of_each
from mlfc.support.dim_estimates import most
from mlfc.support.dims import is_static
from mlfc.support.module_info import BlockInfo, CallInfo, ConstantInfo, ModuleInfo, NamedBytes, PeakInfo
from mlfc.support.version import __version__
from mlfc.tir.program import Dataflow, KernelCall, Value

AOT, GRAPH, VM = "aot", "graph", "vm"
_PEAK_TENSORS = 5
_MOST_SHAPE = 2_000  # characters: expressions of dimensions may be long

_hashes: WeakKeyDictionary[Value, str] = WeakKeyDictionary()


def module_info(factory: Factory, code: GeneratedCode | None = None) -> ModuleInfo:
    """Return the details needed to run and describe a module; `code` is its code if it was linked with others."""
    code = code or factory.code
    flow = Dataflow(factory.program)
    given = flow.given_by_calls()
    return ModuleInfo.of(
        factory.interface(code),
        version=__version__,
        numerics=factory.module.numerics,
        optimize=factory.optimize,
        operators=tuple(
            replace(_operator(factory, code, index, call), reads=flow.read_by(index), outputs=given.get(index, ()))
            for index, call in enumerate(factory.program.calls)
        ),
        parameters=sum(int(array.size) for array in factory.source_params.values()),
        peak=_peak(factory, code),
        source=dict(factory.module.source),
    )


def full_module_info(factory: Factory, code: GeneratedCode | None = None) -> ModuleInfo:
    """Return `module_info` plus the plan and the constants, each content once, for validation and comparison."""
    return replace(module_info(factory, code), plan=planned_blocks(factory), constants=constants(factory))


def planned_blocks(factory: Factory) -> tuple[BlockInfo, ...] | None:
    """Return the blocks of the workspace; None if the code has no plan."""
    has_plan = factory.executor == AOT or (factory.executor == VM and bool(factory.plan.live))
    return memory.blocks(factory.program, factory.plan) if has_plan else None


def _operator(factory: Factory, code: GeneratedCode, index: int, call: KernelCall) -> CallInfo:
    known = call_info(call, code.function_of(call.kernel.name))
    values = (*call.inputs, *call.constants, call.output)
    is_open = not is_static(extent for value in values for extent in value.shape)
    shapes = (f"{value.dtype}[{', '.join(map(str, value.shape))}]"[:_MOST_SHAPE] for value in values)
    return CallInfo(
        **{item.name: getattr(known, item.name) for item in fields(known)},
        # a device's scratch is among the tensors of the graph
        workspace_bytes=most(call.kernel.scratch_bytes) if call.kernel.device is None else 0,
        shapes=tuple(shapes) if is_open else (),
        live_bytes=factory.plan.live[index] if factory.plan.live else None,
        device=(call.output.root.device or "cpu") if code.device else None,
    )


def _peak(factory: Factory, code: GeneratedCode) -> PeakInfo | None:
    plan = factory.plan
    if plan.peak_call is None or not plan.lower_bound:
        return None
    call, live = factory.program.calls[plan.peak_call], plan.live[plan.peak_call]
    tensors = memory.live_tensors(factory.program, plan, plan.peak_call)
    largest = tuple(NamedBytes(name, size) for name, size in tensors[:_PEAK_TENSORS])
    return PeakInfo(code.function_of(call.kernel.name), tuple(call.nodes), live, largest)


def constants(factory: Factory) -> tuple[ConstantInfo, ...]:
    """Return descriptions of the module's constants, each content once, in the order of first use."""
    is_graph = factory.executor == GRAPH
    named = (
        list(factory.graph_constants.items())
        if is_graph
        else [(item.name, item) for item in factory.unit.used_constants()]
    )
    # each is hashed once per process, and large ones in parallel
    unknown = [value for _, value in named if value not in _hashes]
    _hashes.update(zip(unknown, sha256_of_each([ArrayContent(value.array) for value in unknown]), strict=True))
    found: dict[tuple[str, ...], ConstantInfo] = {}
    for name, value in named:
        digest, source = _hashes[value], value.name if is_graph else None
        info = ConstantInfo(name, value.nbytes, value.dtype, tuple(value.shape), digest, source)
        found.setdefault((name,) if is_graph else (value.dtype, digest), info)
    return tuple(found.values())
