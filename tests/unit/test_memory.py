"""The memory plan against exhaustive search, and its verification against planted faults."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlfc import memory
from mlfc.errors import InternalError
from mlfc.tir.ir import Buffer, PrimFunc, Seq
from mlfc.tir.program import KernelCall, Program, Value


def make_kernel(inputs, output, scratch=0, inplace=()):
    return PrimFunc(
        "kernel",
        tuple(Buffer(f"in{i}", value.shape, value.dtype) for i, value in enumerate(inputs)),
        (),
        Buffer("out", output.shape, output.dtype),
        (Buffer("scratch", (scratch,), "int8", "scratch"),) if scratch else (),
        Seq(()),
        tuple(inplace),
    )


def make_call(inputs, output, scratch=0, inplace=()):
    return KernelCall(make_kernel(inputs, output, scratch, inplace), tuple(inputs), (), output)


def make_value(name, nbytes, kind="intermediate", alias_of=None):
    return Value(name, (nbytes,), "int8", kind, None, alias_of)


def make_program(calls, outputs=()):
    return Program("test", (), tuple(outputs), (), (), tuple(calls))


@st.composite
def programs(draw, max_calls=5, unit=16, max_units=9):
    """Return a random straight-line program: every call reads earlier values, some kernels allow in-place reuse."""
    values = [make_value("x", 64, "input")]
    calls = []
    for index in range(draw(st.integers(2, max_calls))):
        inputs = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        output = make_value(f"v{index}", unit * draw(st.integers(1, max_units)))
        inplace = [k for k in range(len(inputs)) if draw(st.booleans())]
        calls.append(make_call(inputs, output, draw(st.sampled_from([0, 0, 0, 64])), inplace))
        values.append(output)
        if draw(st.integers(0, 3)) == 0:
            values.append(make_value(f"view{index}", output.nbytes, alias_of=output))
    final = make_value("y", 16, "output")
    calls.append(make_call([values[-1]], final))
    return make_program(calls, [final])


def blocks_of(program, decisions):
    """Return the rectangles (first, last, bytes, alignment) of each shared offset, computed independently."""
    last, first = {}, {}
    for index, call in enumerate(program.calls):
        for value in (*call.inputs, call.output):
            if value.root.kind == "intermediate":
                last[value.root] = index
                first.setdefault(value.root, index)
    chain = {root: [root] for root in first}
    for index, reused in decisions.items():
        joined = chain[reused] + chain[program.calls[index].output.root]
        for member in joined:
            chain[member] = joined
    groups = {id(members): [(first[m], last[m], m.nbytes, 16) for m in members] for members in chain.values()}
    scratch = [
        [(index, index, call.kernel.scratch_bytes, 64)]
        for index, call in enumerate(program.calls)
        if call.kernel.scratch
    ]
    return [*groups.values(), *scratch]


def legal_reuse(program):
    """Return for each call all choices of an input to overwrite, including None."""
    options = []
    for index, call in enumerate(program.calls):
        legal = [None]
        later = {value.root for after in program.calls[index + 1 :] for value in after.inputs}
        for root in {value.root: None for value in call.inputs}:
            positions = [k for k, value in enumerate(call.inputs) if value.root is root]
            if (
                root.kind == call.output.kind == "intermediate"
                and root not in later
                and set(positions) <= set(call.kernel.inplace)
            ):
                legal.append(root)
        options.append(legal)
    return options


def fits(block, offset, placed):
    return all(
        offset + nbytes <= other_offset or other_offset + other_bytes <= offset
        for first, last, nbytes, _ in block
        for other, other_offset in placed
        for other_first, other_last, other_bytes, _ in other
        if first <= other_last and other_first <= last
    )


def smallest_arena(blocks, best):
    """Return the smallest arena, by trying all orders: placing blocks lowest first reaches every optimum."""

    def search(remaining, placed, size):
        nonlocal best
        if size >= best:
            return
        if not remaining:
            best = size
            return
        for block in remaining:
            align = max(item[3] for item in block)
            offset = next(at for at in range(0, 10**6, align) if fits(block, at, placed))
            top = offset + max(item[2] for item in block)
            rest = [other for other in remaining if other is not block]
            search(rest, [*placed, (block, offset)], max(size, top))

    search(blocks, [], 0)
    return best


def optimum(program):
    best = 10**9
    for choice in itertools.product(*legal_reuse(program)):
        decisions = {index: root for index, root in enumerate(choice) if root is not None}
        best = smallest_arena(blocks_of(program, decisions), best)
    return best


@settings(max_examples=40, deadline=None)
@given(programs())
def test_small_programs_reach_the_optimum_of_exhaustive_search(program):
    plan = memory.plan(program)
    memory.prove(program, plan)
    best = optimum(program)
    assert plan.lower_bound <= best
    assert plan.size == best


@settings(max_examples=40, deadline=None)
@given(programs(max_calls=30, unit=48, max_units=40))
def test_larger_programs_are_proved_and_stay_near_the_bound(program):
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.size <= 1.2 * plan.lower_bound + 64
    assert plan.live[plan.peak_call] == plan.lower_bound == max(plan.live)


@settings(max_examples=100, deadline=None)
@given(programs(), st.data())
def test_the_proof_catches_a_value_moved_onto_a_live_one(program, data):
    plan = memory.plan(program)
    pairs = []
    for index, call in enumerate(program.calls):
        later = {value.root for after in program.calls[index + 1 :] for value in after.inputs}
        written = {earlier.output.root for earlier in program.calls[:index]}
        if call.output.kind == "intermediate":
            pairs += [(call.output.root, root) for root in written & later]
    if not pairs:
        return
    moved, onto = data.draw(st.sampled_from(sorted(pairs, key=lambda pair: (pair[0].name, pair[1].name))))
    broken = replace(plan, offsets={**plan.offsets, moved: plan.offsets[onto]}, size=plan.size + 10**4)
    with pytest.raises(InternalError, match=r"overwritten|not allowed|scratch"):
        memory.prove(program, broken)


def chain(nbytes, *, inplace, twice=False):
    x, y = make_value("x", 16, "input"), make_value("y", 16, "output")
    a, b = make_value("a", nbytes[0]), make_value("b", nbytes[1])
    reads = [a, a] if twice else [a]
    return make_program([make_call([x], a), make_call(reads, b, inplace=inplace), make_call([b], y)], [y]), a, b


@pytest.mark.parametrize(("nbytes", "size"), [((128, 128), 128), ((64, 160), 160), ((160, 64), 160)])
def test_in_place_takes_the_larger_of_input_and_output(nbytes, size):
    program, a, b = chain(nbytes, inplace=(0,))
    plan = memory.plan(program)
    assert plan.offsets[a] == plan.offsets[b]
    assert plan.size == plan.lower_bound == size
    memory.prove(program, plan)


def test_an_input_also_read_elsewhere_by_the_kernel_is_not_overwritten():
    program, a, b = chain((128, 128), inplace=(0,), twice=True)
    plan = memory.plan(program)
    assert plan.size == 256
    with pytest.raises(InternalError, match="not allowed"):
        memory.prove(program, replace(plan, offsets={a: 0, b: 0}))


def test_a_view_keeps_its_bytes_alive():
    x, y = make_value("x", 16, "input"), make_value("y", 16, "output")
    a, b = make_value("a", 128), make_value("b", 128)
    view = make_value("view", 128, alias_of=a)
    calls = [make_call([x], a), make_call([a], b, inplace=(0,)), make_call([view, b], y)]
    plan = memory.plan(make_program(calls, [y]))
    assert plan.size == plan.lower_bound == 256
    assert plan.offset(view) == plan.offsets[a]


def test_scratch_is_aligned_apart_and_counted_in_its_call_alone():
    x, y = make_value("x", 16, "input"), make_value("y", 16, "output")
    a, b = make_value("a", 48), make_value("b", 48)
    program = make_program([make_call([x], a), make_call([a], b, scratch=100), make_call([b], y)], [y])
    plan = memory.plan(program)
    assert plan.scratch_offsets[1] % 64 == 0
    assert plan.live == (48, 196, 48)
    assert memory.live_tensors(program, plan, 1) == (("(scratch)", 100), ("a", 48), ("b", 48))
    with pytest.raises(InternalError, match="scratch"):
        memory.prove(program, replace(plan, scratch_offsets=(0, plan.offsets[a] // 64 * 64, 0)))
    with pytest.raises(InternalError, match="outside"):
        memory.prove(program, replace(plan, size=plan.size - 1))


def test_small_scratch_needs_no_more_alignment_than_it_has_bytes():
    x, y = make_value("x", 16, "input"), make_value("y", 16, "output")
    a, b = make_value("a", 16), make_value("b", 16)
    program = make_program([make_call([x], a), make_call([a], b, scratch=19), make_call([b], y)], [y])
    plan = memory.plan(program)
    memory.prove(program, plan)
    assert plan.size == plan.lower_bound == 51


def test_a_program_without_intermediates_needs_no_arena():
    x, y = make_value("x", 16, "input"), make_value("y", 16, "output")
    plan = memory.plan(make_program([make_call([x], y)], [y]))
    assert (plan.size, plan.lower_bound, plan.peak_call) == (0, 0, 0)


def test_equal_programs_get_equal_offsets():
    def offsets():
        x = make_value("x", 16, "input")
        values, calls = [x], []
        for index in range(60):
            output = make_value(f"v{index}", 16 * (1 + index * 7919 % 101))
            calls.append(make_call([values[-1], values[index * 31 % len(values)]], output, inplace=(0,)))
            values.append(output)
        plan = memory.plan(make_program(calls, [values[-1]]))
        return plan.size, [plan.offsets[value] for value in values[1:]]

    assert offsets() == offsets()
