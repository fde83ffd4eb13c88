"""Plans of programs with branches, loops and dynamic dimensions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mlfc import memory
from mlfc.compiler import build
from mlfc.errors import InternalError
from mlfc.memory.liveness import most_bytes
from mlfc.support.dims import Symbol
from mlfc.tir.program import Assign, Branch, Instruction, Jump, KernelCall, Label, Program, Return, Value
from tests import vm_control
from tests.unit.test_memory import make_call, make_value

ROWS = Symbol("rows", 1, 32).dim


def _rows(name: str, kind: str = "intermediate") -> Value:
    return Value(name, (ROWS, 4), "float32", kind)


def _program(instructions: list[Instruction], outputs: list[Value]) -> Program:
    calls = [item for item in instructions if isinstance(item, KernelCall)]
    kernels = tuple(dict.fromkeys(call.kernel for call in calls))
    return Program("test", (), tuple(outputs), (), kernels, tuple(instructions))


def _loop() -> tuple[Program, dict[str, Value]]:
    """Return a program whose loop reads `kept`, written before the loop, and then writes `late`."""
    x, condition = make_value("x", 16, "input"), make_value("condition", 1, "input")
    kept, late, carried = _rows("kept"), _rows("late"), _rows("carried", "variable")
    head, done = Label("head"), Label("done")
    instructions: list[Instruction] = [
        make_call([x], kept),
        Assign((carried,), (kept,)),
        head,
        Branch(condition, done),
        make_call([kept, carried], late),
        Assign((carried,), (late,)),
        Jump(head),
        done,
        Return((carried,)),
    ]
    return _program(instructions, [carried]), {value.name: value for value in (kept, late, carried)}


def test_values_that_a_loop_reads_live_to_its_end() -> None:
    program, values = _loop()
    plan = memory.plan(program)
    assert plan.is_bounded
    assert plan.size == 3 * 32 * 4 * 4  # as large as the bounds of `rows` allow; all values are live in the loop
    memory.prove(program, plan)
    late = {**plan.offsets, values["late"]: plan.offsets[values["kept"]]}
    with pytest.raises(InternalError, match="not allowed"):
        memory.prove(program, replace(plan, offsets=late))


def test_the_proof_follows_jumps_back() -> None:
    program, values = _loop()
    other = _rows("other")
    instructions = list(program.instructions)
    instructions.insert(5, make_call([values["late"]], other))  # after the last read of `kept` in this iteration
    program = replace(program, instructions=tuple(instructions))
    plan = memory.plan(program)
    memory.prove(program, plan)
    with pytest.raises(InternalError, match="'kept' are overwritten"):
        memory.prove(program, replace(plan, offsets={**plan.offsets, other: plan.offsets[values["kept"]]}))


def test_the_proof_joins_branches() -> None:
    x, condition = make_value("x", 16, "input"), make_value("condition", 1, "input")
    first, second, result = _rows("first"), _rows("second"), _rows("result", "variable")
    otherwise, end = Label("otherwise"), Label("end")
    program = _program(
        [
            make_call([x], first),
            Branch(condition, otherwise),
            Assign((result,), (first,)),
            Jump(end),
            otherwise,
            make_call([x], second),
            Assign((result,), (second,)),
            end,
            make_call([result, first], y := _rows("y")),
            Return((y,)),
        ],
        [y],
    )
    plan = memory.plan(program)
    memory.prove(program, plan)
    with pytest.raises(InternalError, match="'first' are overwritten"):  # on one of two paths
        memory.prove(program, replace(plan, offsets={**plan.offsets, second: plan.offsets[first]}))
    unwritten = replace(program, instructions=(*program.instructions[:2], *program.instructions[3:]))
    with pytest.raises(InternalError, match="'result' are overwritten"):
        memory.prove(unwritten, plan)


def test_an_output_takes_the_place_of_an_input_that_dies() -> None:
    x = make_value("x", 16, "input")
    a, b = _rows("a"), _rows("b")
    program = _program([make_call([x], a), make_call([a], b, inplace=(0,)), Return((b,))], [b])
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.size == plan.lower_bound == 32 * 4 * 4
    assert plan.inplace == (None, a)
    assert memory.blocks(program, plan)[1].reuses == 0


def test_sizes_without_bounds_are_allocated() -> None:
    value = Value("x", (Symbol("rows", 1).dim, 4), "float32", "intermediate")
    program = _program([make_call([make_value("x", 16, "input")], value), Return((value,))], [value])
    plan = memory.plan(program)
    assert not plan.is_bounded
    assert [storage.nbytes for storage in plan.storages] == [value.nbytes]
    memory.prove(program, plan)


@pytest.mark.parametrize("name", ["counting", "swapping", "branching", "choosing", "picking"])
def test_plans_of_models_are_proven(name: str) -> None:
    factory = build(getattr(vm_control, name)(), "llvm", {}, dry_run=True)
    program, plan = factory.program, factory.plan
    memory.prove(program, plan)
    for value in plan.offsets:
        low = {**plan.offsets, value: plan.size}
        with pytest.raises(InternalError, match="outside"):
            memory.prove(program, replace(plan, offsets=low))


def test_small_blocks_need_no_more_alignment_than_their_bytes() -> None:
    plan = build(vm_control.swapping(), "llvm", {}, dry_run=True).plan
    sizes = [most_bytes(value) for value in plan.offsets]
    assert plan.size <= sum(size + -size % 8 for size in sizes) < 64 * len(sizes)
