"""Which plan a module gets: the smaller of two orders, over pools if there are any, tiled where RAM is short."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from mlfc.errors import BudgetError
from mlfc.memory.assign_pools import assign_pools, prove_pools
from mlfc.memory.order import reordered
from mlfc.memory.plan import Plan
from mlfc.memory.planner import plan
from mlfc.memory.pools import MemoryOptions
from mlfc.memory.proof import prove
from mlfc.memory.states import commit_states, with_states
from mlfc.support.cost import spend
from mlfc.tir.program import Program, Value

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
    """Return the program with its inputs and outputs where they are to lie, and the proven plan of its workspace.

    `reorder`: whether its calls may take place in another order, if that takes less memory.
    `in_arenas`: whether kernels know of outputs that reach into inputs; those of the graph executor do not.
    `ram`: bytes for the workspace, inputs and outputs.
    `tile_for_ram`: tiles layers by rows where the workspace exceeds `ram`.
    Raises BudgetError if the workspace does not fit the pools. The instructions of a dynamic program stay as they are.
    """
    if program.is_dynamic:
        dynamic = plan(program)
        prove(program, dynamic)
        return program, dynamic

    def planner(lowered: Program, limit: int = 0) -> Planned:
        moved = committed(with_workspace_io(lowered) if memory_options.workspace_io else lowered)
        return moved, plan_of(moved, limit)

    def committed(program: Program) -> Program:
        return commit_states(program, overlap=in_arenas)

    def plan_of(program: Program, limit: int = 0) -> Plan:
        pools = memory_options.pools
        return with_states(program, assign_pools(program, pools) if pools else plan(program, limit=limit))

    whole = with_workspace_io(program) if memory_options.workspace_io else program
    plans: list[Planned] = []
    refused: list[BudgetError] = []
    orders = [committed(order) for order in dict.fromkeys((whole, reordered(whole) if reorder else whole))]
    for order in orders:
        try:
            plans.append((order, plan_of(order)))
        except BudgetError as error:
            refused.append(error)
    if not plans:
        raise refused[0]
    chosen = min(plans, key=_workspace)
    if ram is not None and tile_for_ram is not None and plans[0][0] is orders[0]:
        lent = sum(value.nbytes for value in (*whole.inputs, *whole.outputs) if value.kind != "intermediate")
        lent += chosen[1].state_bytes
        if _workspace(chosen) + lent > ram:
            chosen = min(chosen, tile_for_ram(plans[0], max(0, ram - lent), planner), key=_workspace)
    spend("workspace", _workspace(chosen) + chosen[1].state_bytes)
    prove(*chosen)
    prove_pools(*chosen, memory_options.pools)
    return chosen


def _workspace(planned: Planned) -> int:
    return planned[1].workspace_bytes


def with_workspace_io(program: Program) -> Program:
    """Return the same program with inputs and outputs that the memory plan places like intermediates.

    The caller writes the inputs before the first call and reads the outputs after the last one; between, the bytes of
    an input that is no longer needed are anybody's.
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
