"""Choose the groups that run on a device; the others run on the host.

A group runs on the device if it can be lowered for it. Small groups, first connected ones together, then single ones,
move to the host if that reduces the number of copied tensors: a round trip costs more than their work.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlfc.errors import UnsupportedError
from mlfc.relay import ir as relay
from mlfc.relay.op import Trait
from mlfc.relay.visitor import post_order
from mlfc.support import dtypes
from mlfc.support.dim_estimates import most
from mlfc.target.features import Features
from mlfc.tir.visitor import launches
from mlfc.transform.lower_group import LoweredGroup, lower_group
from mlfc.transform.matching import storage_owner

SMALL_WORK = 1 << 16
"""Most computed elements plus multiply-accumulates of a small group: a host's work in the time of a copy."""

FEW_NUMBERS = 64
"""Most elements of an integer tensor that the host computes unless its operands are on the device."""
DEFINES = "defines"
"""Name of a function attribute: the symbols whose values are the last fields of its body."""


@dataclass(frozen=True, eq=False)
class DevicePlacement:
    """The groups and inputs of a module that are on a device."""

    device: str  # the kind of device
    groups: Mapping[relay.Call, LoweredGroup]  # those that run on the device, lowered for it
    inputs: frozenset[relay.Expr]  # those that such a group reads

    def device_of(self, expr: relay.Expr) -> str | None:
        """Return the kind of device that stores an input or a group's result; None for the host."""
        return self.device if expr in self.inputs or expr in self.groups else None


def place_on_device(
    module: relay.IRModule,
    device: str,
    features: Features,
    *,
    special: Sequence[relay.IRModule] = (),
    dynamic: bool = False,
) -> DevicePlacement:
    """Choose which groups of fused modules run on a device with these features.

    `special` are specialized versions of the module. In a `dynamic` program only groups are placed: inputs and results
    of branches and loops may be on either side, and small integer tensors, which shapes and branches depend on, stay on
    the host.
    """
    known: dict[relay.Function, LoweredGroup | None] = {}
    groups: dict[relay.Call, LoweredGroup] = {}
    inputs: set[relay.Expr] = set()
    for own in (function for each in (module, *special) for function in each.functions.values()):
        flow = _Flow(own)
        found: dict[relay.Call, LoweredGroup] = {}
        for call, function in flow.groups.items():
            if function not in known:
                known[function] = _lowered(function, device, features)
            group = known[function]
            # a few integers or bools, on which shapes and branches may depend
            kind = relay.tensor_type(call)
            is_number = kind.dtype == "bool" or dtypes.is_integer(kind.dtype)
            is_control = is_number and (most(kind.size) or FEW_NUMBERS + 1) <= FEW_NUMBERS
            is_alone = dynamic and is_control and found.keys().isdisjoint(flow.sources[call])
            if group is not None and not is_alone:
                found[call] = group
        kept = _without_islands(flow, found)
        groups.update((call, group) for call, group in found.items() if call in kept)
        if not dynamic:
            inputs.update(param for param in own.params if any(user in kept for user in flow.readers[param]))
    return DevicePlacement(device, groups, frozenset(inputs))


def _lowered(function: relay.Function, device: str, features: Features) -> LoweredGroup | None:
    if "Compiler" in function.attrs:  # external generators generate code for hosts
        return None
    try:
        group = lower_group(function, features)
    except UnsupportedError:
        return None
    # a result without elements launches no kernel
    return replace(group, prim=replace(group.prim, device=device)) if launches(group.prim) else None


@dataclass(eq=False)
class _Flow:
    """The groups of a function and the tensors that they read; views are replaced by their sources."""

    main: relay.Function
    groups: dict[relay.Call, relay.Function] = field(default_factory=dict)  # in the order of the graph
    # the inputs and groups whose results a group reads, each once
    sources: dict[relay.Call, list[relay.Expr]] = field(default_factory=dict)
    # the groups that read each input or group result
    readers: dict[relay.Expr, list[relay.Call]] = field(default_factory=dict)
    # values that the host reads itself: conditions, values of symbols, positions in lists
    on_host: set[relay.Expr] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.readers = {param: [] for param in self.main.params}
        symbols = len(self.main.attrs.get(DEFINES, ()))
        if symbols and isinstance(self.main.body, relay.Tuple):
            self.on_host.update(map(storage_owner, self.main.body.fields[-symbols:]))
        for expr in post_order(self.main.body):
            if isinstance(expr, relay.If):
                self.on_host.add(storage_owner(expr.condition))
            elif isinstance(expr, relay.Call) and relay.has_trait(expr, Trait.AT_POSITION):
                self.on_host.add(storage_owner(expr.args[1]))
            if isinstance(expr, relay.Call) and isinstance(expr.op, relay.Function):
                owners = dict.fromkeys(storage_owner(arg) for arg in expr.args)
                self.groups[expr] = expr.op
                self.sources[expr] = [owner for owner in owners if not isinstance(owner, relay.Constant)]
                self.readers[expr] = []
                for owner in self.sources[expr]:
                    self.readers.setdefault(owner, []).append(expr)

    def copies(self, tensors: Iterable[relay.Expr], on_device: Collection[relay.Call]) -> int:
        """Return how many tensors must be copied; callers write an input directly to its only side."""
        count = 0
        for tensor in tensors:
            sides = {reader in on_device for reader in self.readers[tensor]}
            if tensor in self.groups:
                sides.add(tensor in on_device)
            if tensor in self.on_host:
                sides.add(False)
            count += len(sides) == 2
        return count


def _without_islands(flow: _Flow, groups: Mapping[relay.Call, LoweredGroup]) -> set[relay.Call]:
    """Return the groups that stay on the device after small ones moved to the host to save copies."""
    on_device = set(groups)
    small = []
    for call, group in groups.items():
        operators = sum(isinstance(expr, relay.Call) for expr in post_order(flow.groups[call].body))
        macs, elements = (most(extent) for extent in (group.prim.macs, math.prod(relay.tensor_type(call).shape)))
        # a group of unknown size counts as large
        if macs is not None and elements is not None and macs + operators * elements <= SMALL_WORK:
            small.append(call)
    islands = [*_connected(flow, small), *([call] for call in small)]
    moved = True
    while moved:
        moved = False
        for island in islands:
            leaving = on_device.intersection(island)
            touched = dict.fromkeys(tensor for call in island for tensor in (*flow.sources[call], call))
            if leaving and flow.copies(touched, on_device - leaving) < flow.copies(touched, on_device):
                on_device -= leaving
                moved = True
    return on_device


def _connected(flow: _Flow, calls: Iterable[relay.Call]) -> list[list[relay.Call]]:
    """Return the connected components of groups that read each other's results."""
    members: dict[relay.Expr, list[relay.Call]] = {}
    for call in calls:
        parts = {id(members[source]): members[source] for source in flow.sources[call] if source in members}
        joined = [*(member for part in parts.values() for member in part), call]
        members.update(dict.fromkeys(joined, joined))
    return list({id(part): part for part in members.values()}.values())
