"""Tunable kernels of a model, and their code for given values of the template's parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from mlfc import codegen, memory, transform
from mlfc.errors import OptionError
from mlfc.factory import Factory
from mlfc.relay import ir as relay
from mlfc.relay.dynamic import is_dynamic
from mlfc.relay.visitor import post_order
from mlfc.support.platforms import host_arch
from mlfc.target.features import Choices, Tuned, level_here, levels_of_host, native_cpu, text_of, without_transforms
from mlfc.target.target import Target, parse_target
from mlfc.target.tuning_log import KernelFacts
from mlfc.transform.lower_group import kernel_facts, lower_group

MOST_CONSTANTS = 32 << 20
"""Limit of a tunable kernel's constants in bytes: a larger kernel is memory bound, regardless of its loops."""
NAME = "tuned"


@dataclass(eq=False)
class TunableKernel:
    """A loop nest of a model with tunable parameters, shared by `calls` groups."""

    facts: KernelFacts
    group: relay.Function
    target: Target
    macs: int
    calls: int = 1

    def parameters(self, values: Choices) -> dict[str, tuple[str, ...]]:
        """Return the values of each parameter, the rule's first, given `values` of other parameters."""
        lowered = lower_group(self.group, self._features(values).features)
        found = {}
        for name, parameter in lowered.parameters.items():
            found[name] = tuple(dict.fromkeys(map(text_of, (parameter.default, *parameter.allowed()))))
        return found

    def _features(self, values: Choices) -> Target:
        features = replace(self.target.features, levels=(), tuned=Tuned({self.facts.key: values}))
        return replace(self.target, features=features)

    def factory(self, values: Choices) -> Factory:
        """Return a module of this group alone."""
        target = self._features(values)
        params = tuple(relay.Var(f"x{index}", param.type) for index, param in enumerate(self.group.params))
        call = relay.call_function(self.group, params)
        module = relay.IRModule({"main": relay.Function(params, call)})
        small = target.features.optimize == "size"
        program, plan = memory.choose_plan(
            transform.lower(module, target.features, NAME), memory.MemoryOptions(), reorder=False
        )
        unit = codegen.Unit(
            program, plan, NAME, target=target, small=small,
            packed_constants=small and not target.features.vector_bytes,
        )  # fmt: skip
        return Factory(NAME, target, "aot", module, {}, unit)

    @property
    def title(self) -> str:
        """Readable name of the kernel."""
        return f"{self.facts.operator} {' x '.join(self.facts.inputs)}"


def measured_target(target: Target) -> Target:
    """Return the target whose code is measured: for a target with several CPU levels, the level of this machine."""
    if target.device:
        raise OptionError(
            f"expected a target of hosts or microcontrollers, got the device '{target}'",
            place="--target",
            next_step="Tune for c, 'c -mcpu=native' or a board",
        )
    if target.levels is not None:
        if target.library_arch != host_arch():
            raise OptionError(
                f"expected a target of this machine ({host_arch()}), got '{target}'",
                place="--target",
                next_step="Tune on a machine of that kind",
            )
        level, _ = level_here(target.levels)
        return target.at_level(level.name)
    return target


def serving(target: Target, kernels: Sequence[TunableKernel]) -> Target:
    """Return the target of the level that a library selects for these kernels: not a float-only one for bytes."""
    levels = levels_of_host()
    known = levels.levels if levels else ()
    names = [level.name for level in known]
    has_bytes = any("int8" in text for kernel in kernels for text in kernel.facts.inputs)
    if not has_bytes or target.kind != "c" or target.mcpu not in names:
        return target
    place = names.index(target.mcpu)
    while known[place].serves == "floats":
        place -= 1
    options = [f"{name}={value}" for name, value in target.options.items()]
    return parse_target(" ".join([target.kind, f"-mcpu={names[place]}", *options]), target.features.optimize)


def level_to_build(target: Target) -> str | None:
    """Return the level whose compiler flags a target needs; None if the compiler's native flags are sufficient.

    Raises OptionError for a level that this machine does not support.
    """
    known = levels_of_host()
    names = [level.name for level in known.levels] if known else []
    native = native_cpu()
    if known is None or target.kind != "c" or target.mcpu not in names or native not in names:
        return None
    if target.mcpu == native and known.is_native:
        return None
    if names.index(target.mcpu) > names.index(native):
        raise OptionError(
            f"this processor lacks '{target.mcpu}'", place="--target", next_step=f"Tune for {native}, or omit it"
        )
    return target.mcpu


def tunable_kernels(
    module: relay.IRModule, params: Mapping[str, npt.NDArray[Any]], target: Target, limit_factor: float = 1.0
) -> list[TunableKernel]:
    """Return the distinct tunable kernels of a model, the one with the most work first.

    Raises OptionError for a model with dynamic shapes or control flow.
    """
    if is_dynamic(module):
        raise OptionError(
            "tuning requires static shapes and no control flow",
            next_step="Specify static input shapes: --shape NAME=1,3,224,224",
        )
    values = transform.checked_params(module, params)
    found: dict[str, TunableKernel] = {}
    with transform.within_limits(module, values, limit_factor):
        fused = transform.run(module, values)
        if transform.is_rounding_sensitive([fused]):
            target = replace(target, features=without_transforms(target.features))
        for call in post_order(fused.main.body):
            group = call.op if isinstance(call, relay.Call) else None
            if not isinstance(group, relay.Function) or "Compiler" in group.attrs:
                continue
            facts = kernel_facts(group)
            known = None if facts is None else KernelFacts.from_json(facts)
            if known is not None and known.key in found:
                found[known.key].calls += 1
            elif known is not None:
                lowered = lower_group(group, replace(target.features, levels=()))
                is_small = sum(array.nbytes for array in lowered.constants) <= MOST_CONSTANTS
                if is_small and any(len(set(item.allowed())) > 1 for item in lowered.parameters.values()):
                    found[known.key] = TunableKernel(known, group, target, lowered.prim.macs)
    return sorted(found.values(), key=lambda kernel: -kernel.macs * kernel.calls)
