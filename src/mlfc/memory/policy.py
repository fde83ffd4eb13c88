"""Choice of the memory plan: the smaller of two orders, distributed over pools if any, tiled if RAM is short.

States have their own memory. Calls read the old value of a state. The new value replaces it at the end of a run, by a
copy, or as soon as it is computed if no later call reads the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from mlfc.errors import BudgetError
from mlfc.memory.assign_pools import assign_pools, prove_pools
from mlfc.memory.liveness import alignment_of, allows_inplace, call_overlap_distance
from mlfc.memory.order import reordered
from mlfc.memory.plan import MemoryOptions, Plan
from mlfc.memory.planner import plan
from mlfc.memory.proof import prove
from mlfc.support.cost import spend
from mlfc.tir.program import KernelCall, Program, StateValue, Value

Planned: TypeAlias = tuple[Program, Plan]
Planner: TypeAlias = Callable[[Program, int], Planned]


def choose_plan(
    program: Program,
    memory_options: MemoryOptions,
    *,
    reorder: bool,
    in_arenas: bool = True,
    ram: int | None = None,
    tile_for_ram: Callable[[Planned, int, Planner], Planned] | None = None,
) -> Planned:
    """Return the program with its inputs and outputs placed, and the proven plan of its workspace.

    `reorder`: whether calls may be reordered to save memory.
    `in_arenas`: whether kernels support outputs that overlap inputs; those of the graph executor do not.
    `ram`: bytes for the workspace, inputs and outputs.
    `tile_for_ram`: function that tiles layers by rows if the workspace exceeds `ram`.
    Raises BudgetError if the workspace does not fit the pools. The instructions of a dynamic program stay as they are.
    """
    if program.is_dynamic:
        dynamic = plan(program)
        prove(program, dynamic)
        return program, dynamic

    def arranged(lowered: Program) -> Program:
        return with_workspace_io(lowered) if memory_options.workspace_io else lowered

    def planned(order: Program, limit: int = 0) -> Planned:
        moved, pools = commit_states(order, overlap=in_arenas), memory_options.pools
        return moved, with_states(moved, assign_pools(moved, pools) if pools else plan(moved, limit=limit))

    whole = arranged(program)
    plans: dict[Program, Planned] = {}
    refused: list[BudgetError] = []
    for order in dict.fromkeys((whole, reordered(whole) if reorder else whole)):
        try:
            plans[order] = planned(order)
        except BudgetError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    chosen = min(plans.values(), key=_workspace)
    if ram is not None and tile_for_ram is not None and whole in plans:
        lent = sum(value.nbytes for value in (*whole.inputs, *whole.outputs) if value.kind != "intermediate")
        lent += chosen[1].state_bytes
        if _workspace(chosen) + lent > ram:
            tiled = tile_for_ram(
                plans[whole], max(0, ram - lent), lambda lowered, limit: planned(arranged(lowered), limit)
            )
            chosen = min(chosen, tiled, key=_workspace)
    spend("workspace", _workspace(chosen) + chosen[1].state_bytes)
    prove(*chosen)
    prove_pools(*chosen, memory_options.pools)
    return chosen


def _workspace(planned: Planned) -> int:
    return planned[1].workspace_bytes


def with_workspace_io(program: Program) -> Program:
    """Return the same program with inputs and outputs that the memory plan places like intermediates.

    The caller writes the inputs before the first call and reads the outputs after the last one; in between, the bytes
    of a dead input are reused.
    """
    moved: dict[Value, Value] = {}

    def move(value: Value) -> Value:
        if value.kind not in ("input", "output"):
            return value
        if value not in moved:
            alias = value.alias_of and move(value.alias_of)
            moved[value] = replace(value, kind="intermediate", alias_of=alias)
        return moved[value]

    return replace(
        program,
        inputs=tuple(map(move, program.inputs)),
        outputs=tuple(map(move, program.outputs)),
        instructions=tuple(
            replace(call, inputs=tuple(map(move, call.inputs)), output=move(call.output)) for call in program.calls
        ),
    )


_ALIGNMENT = 16


def commit_states(program: Program, *, overlap: bool) -> Program:
    """Return the program with calls that write the new values of its states; existing calls keep their order.

    `overlap`: whether a call may overwrite an old value while it reads other elements of it, if proven safe.
    """
    if not program.states:
        return program
    calls = program.calls
    states = [state for state in program.states if _is_direct(state, calls, overlap=overlap)]
    moved = {state.after: state.written for state in states}

    def move(value: Value) -> Value:
        if value in moved:
            return moved[value]
        if value.alias_of is None or value.root not in moved:
            return value
        moved[value] = replace(value, kind="state", alias_of=move(value.alias_of))
        return moved[value]

    direct = [replace(call, inputs=tuple(map(move, call.inputs)), output=move(call.output)) for call in calls]
    copies = [state.copy for state in program.states if state not in states and state.copy is not None]
    unused = {state.copy.kernel for state in states if state.copy} - {call.kernel for call in (*direct, *copies)}
    return replace(
        program,
        instructions=(*direct, *copies),
        kernels=tuple(kernel for kernel in program.kernels if kernel not in unused),
        states=tuple(replace(state, after=state.written) for state in program.states),
    )


def _is_direct(state: StateValue, calls: Sequence[KernelCall], *, overlap: bool) -> bool:
    """Return whether the call that computes the new value may overwrite the old one."""
    writers = [index for index, call in enumerate(calls) if call.output.root is state.after]
    if len(writers) != 1 or state.after.device != state.before.device:
        return False
    writer = calls[writers[0]]
    is_read_later = any(value.root is state.before for call in calls[writers[0] + 1 :] for value in call.inputs)
    is_whole = all(value.is_whole for value in writer.inputs if value.root is state.before)
    if is_read_later or not is_whole or writer.output is not state.after:
        return False
    if allows_inplace(writer, state.before):
        return True
    # a call that shifts a window reads every byte of the old value before it overwrites it
    distance = call_overlap_distance(writer, state.before) if overlap else None
    return distance is not None and distance.allows(0)


def with_states(program: Program, plan: Plan) -> Plan:
    """Return the plan with offsets for the states of a program, in their order."""
    offsets: dict[Value, int] = {}
    end = 0
    for state in program.states:
        align = alignment_of(state.before.nbytes, _ALIGNMENT)
        offset = -(-end // align) * align
        offsets[state.before] = offsets[state.written] = offset
        end = offset + state.before.nbytes
    if not offsets:
        return plan
    written = {state.written: state.before for state in program.states}
    aliased = list(plan.aliased_inputs)
    for index, call in enumerate(program.calls):
        before = written.get(call.output)
        is_read = before is not None and any(value.root is before for value in call.inputs)
        if before is not None and is_read and not allows_inplace(call, before):  # not written element by element
            aliased[index] += (before,)
    return replace(plan, state_offsets=offsets, state_bytes=end, aliased_inputs=tuple(aliased))
