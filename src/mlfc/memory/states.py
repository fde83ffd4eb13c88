"""States: tensors that a program keeps between runs, in a memory of their own.

Calls read the old value of a state. The new one takes its place at the end of a run, by a copy; or as soon as it is
computed, where no call reads the old one later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mlfc.memory.liveness import alignment_of
from mlfc.memory.plan import Plan
from mlfc.memory.reuse import allows_inplace, call_overlap_distance
from mlfc.tir.program import KernelCall, Program, StateValue, Value

_ALIGNMENT = 16


def commit_states(program: Program, *, overlap: bool) -> Program:
    """Return the program with calls that write the new values of its states, in the order of the calls it has.

    `overlap`: whether a call may write over an old value while it reads other elements of it, where that is proven.
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
    """Tell whether the call that computes the new value may write it over the old one."""
    writers = [index for index, call in enumerate(calls) if call.output.root is state.after]
    if len(writers) != 1 or state.after.device != state.before.device:
        return False
    writer = calls[writers[0]]
    later = calls[writers[0] + 1 :]
    if any(value.root is state.before for call in later for value in call.inputs):
        return False
    if not all(value.is_whole for value in writer.inputs if value.root is state.before):
        return False
    if writer.output is not state.after:
        return False
    return allows_inplace(writer, state.before) or (overlap and _reads_ahead(writer, state.before))


def _reads_ahead(writer: KernelCall, before: Value) -> bool:
    """Tell whether a call has read every byte of a value before it writes there: what shifts a window does."""
    distance = call_overlap_distance(writer, before)
    return distance is not None and distance.allows(0)


def with_states(program: Program, plan: Plan) -> Plan:
    """Return the plan with places for the states of a program, in their order."""
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
    aliased = tuple(
        (*roots, *_overwritten(call, written.get(call.output)))
        for call, roots in zip(program.calls, plan.aliased_inputs, strict=True)
    )
    return replace(plan, state_offsets=offsets, state_bytes=end, aliased_inputs=aliased)


def _overwritten(call: KernelCall, before: Value | None) -> tuple[Value, ...]:
    """Return the old value that a call reads and writes over, but not element by element."""
    reads = before is not None and any(value.root is before for value in call.inputs)
    return (before,) if before is not None and reads and not allows_inplace(call, before) else ()
