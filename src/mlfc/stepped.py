"""The same story for the virtual machine: passes -> steps -> storages -> bytecode."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import numpy.typing as npt

from mlfc import codegen, memory, transform
from mlfc.byoc import find_generators
from mlfc.errors import UnsupportedError
from mlfc.relay.ir import IRModule
from mlfc.support.dims import UndecidedError
from mlfc.target.target import Target


def stepped_unit(
    mod: IRModule,
    values: Mapping[str, npt.NDArray[np.generic]],
    name: str,
    targets: tuple[Target, Target],
    specialize: Sequence[Mapping[str, int]],
    limit_factor: float,
) -> codegen.Unit:
    """Return the code of a module for the virtual machine; `targets` are the module's, and its host's."""
    chosen, target = targets
    device = (chosen.device, chosen.features) if chosen.device else None
    partition = transform.PartitionGraph(find_generators(mod.byoc), target.features)
    prepared = partial(transform.run_functions, params=values, partition=partition, on_device=device is not None)
    with _bounds_decide():
        special = [(transform.fixed_symbols(mod, fixed), transform.specialized(mod, fixed)) for fixed in specialize]
        with transform.within_limits(mod, values, limit_factor * (1 + len(special))):
            fused = [(symbols, prepared(each)) for symbols, each in special]
            program = transform.lower_steps(prepared(mod), target.features, name, fused, device)
            slots = memory.plan_slots(program.instructions)
            executable = codegen.assemble(program, slots, name, mod.containers)
    small = target.features.optimize == "size"
    return codegen.Unit(
        program,
        _plan(slots, len(program.calls)),
        name,
        "vm",
        target=target,
        quantization=mod.quantization,
        small=small,
        device_target=chosen if chosen.device else None,
        executable=executable,
        arena=slots.blocks,
    )


def _plan(slots: memory.SlotPlan, calls: int) -> memory.Plan:
    """Return what is known of the arena, whose memory comes from the caller: how much is live during which calls."""
    live = memory.live_in(slots, calls)
    most = max(live, default=0)
    return replace(memory.NO_PLAN, live=live, lower_bound=most, peak_call=live.index(most) if live else None)


@contextmanager
def _bounds_decide() -> Iterator[None]:
    """Say what to do where a question about open dimensions has no answer."""
    try:
        yield
    except UndecidedError as error:
        raise UnsupportedError(
            f"the bounds of the open dimensions do not decide how to compile this: {error}",
            next_step="Give some of them bounds or values: --shape NAME=batch:1..8,3,224,224",
        ) from error
