"""Placement of blocks and constants in several memories, replayed on real bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mlfc
import mlfc.ops
from mlfc import memory
from mlfc.errors import BudgetError, InternalError, OptionError, ProblemsError
from mlfc.memory import ConstantPool, MemoryOptions, Pool
from mlfc.relay import ir
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, PrimFunc
from mlfc.tir.parallel import traffic
from tests.harness import module_of
from tests.unit.test_memory import make_call, make_program, make_value, programs


def replay(program, plan):
    """Run the program on one byte array per pool with random values; every read must return the written value."""
    pools = {pool.name: np.zeros(pool.nbytes, np.uint8) for pool in plan.pools}
    rng = np.random.default_rng(0)
    written = {}

    def place(offset, nbytes):
        if not nbytes:
            return np.zeros(0, np.uint8)
        pool, start = plan.place(offset)
        found = pools[pool.name][start : start + nbytes]
        assert found.size == nbytes, f"{nbytes} bytes at {start} leave the pool {pool.name}"
        return found

    def write(root):
        written[root] = rng.integers(0, 256, root.nbytes, np.uint8)
        place(plan.offset(root), root.nbytes)[:] = written[root]

    def check(root):
        np.testing.assert_array_equal(place(plan.offset(root), root.nbytes), written[root], err_msg=root.name)

    for value in program.inputs:
        if value.root.kind == "intermediate":
            write(value.root)
    for index, call in enumerate(program.calls):
        if call.kernel.scratch_bytes:
            place(plan.scratch_offsets[index], call.kernel.scratch_bytes)[:] = rng.integers(0, 256)
        for value in call.inputs:
            if value.root.kind == "intermediate":
                check(value.root)
        if call.output.root.kind == "intermediate":
            write(call.output.root)
    for value in program.outputs:
        if value.root.kind == "intermediate":
            check(value.root)


@settings(max_examples=40, deadline=None)
@given(programs(max_calls=8), st.lists(st.integers(1, 400), max_size=3), st.booleans())
def test_blocks_over_pools_keep_their_bytes_and_the_pools_their_sizes(program, sizes, io):
    program = replace(
        program, inputs=tuple({v.root: None for c in program.calls for v in c.inputs if v.kind == "input"})
    )
    if io:
        program = memory.with_workspace_io(program)
    pools = [*(Pool(f"p{index}", nbytes) for index, nbytes in enumerate(sizes)), Pool("rest")]
    plan = memory.assign_pools(program, pools)
    memory.prove(program, plan)
    memory.prove_pools(program, plan, pools)
    replay(program, plan)
    limits = {pool.name: pool.nbytes for pool in pools}
    for span in plan.spans:
        assert span.lower_bound <= span.nbytes <= (limits[span.name] or span.nbytes)
    assert plan.workspace_bytes == sum(span.nbytes for span in plan.spans)


@settings(max_examples=30, deadline=None)
@given(programs())
def test_one_roomy_pool_is_the_plan_without_pools(program):
    plain = memory.plan(program)
    spread = memory.assign_pools(program, [Pool("all")])
    assert (spread.workspace_bytes, spread.lower_bound) == (
        max(1, plain.size) if plain.offsets else plain.size,
        plain.lower_bound,
    )


def test_inputs_are_there_from_the_start_and_outputs_to_the_end():
    x, unused = make_value("x", 64, "input"), make_value("unused", 32, "input")
    a, b = make_value("a", 64), make_value("b", 64)
    y, early = make_value("y", 16, "output"), make_value("early", 48, "output")
    program = replace(
        make_program([make_call([x], early), make_call([x], a), make_call([a], b), make_call([b], y)], [early, y]),
        inputs=(x, unused),
    )
    moved = memory.with_workspace_io(program)
    plan = memory.plan(moved)
    memory.prove(moved, plan)
    replay(moved, plan)
    # both inputs and the first output are live at once; after the last read of x, others reuse its memory
    assert plan.live[0] == 64 + 32 + 48
    assert plan.lower_bound == max(plan.live) == 64 + 64 + 48
    assert [value.kind for value in (*program.inputs, *program.outputs)] == ["input", "input", "output", "output"]


def test_an_input_may_be_overwritten_in_place_only_when_it_dies():
    x, y, z = make_value("x", 64, "input"), make_value("y", 64, "output"), make_value("z", 64, "output")
    once = replace(make_program([make_call([x], y, inplace=[0])], [y]), inputs=(x,))
    assert memory.plan(memory.with_workspace_io(once)).size == 64
    calls = [make_call([x], y, inplace=[0]), make_call([x], z, inplace=[0])]
    twice = memory.with_workspace_io(replace(make_program(calls, [y, z]), inputs=(x,)))
    plan = memory.plan(twice)
    memory.prove(twice, plan)
    replay(twice, plan)
    assert plan.size == 128


def test_an_output_is_read_after_the_last_call_that_reads_it():
    x, early, last = make_value("x", 64, "input"), make_value("early", 64, "output"), make_value("last", 64, "output")
    calls = [make_call([x], early, inplace=[0]), make_call([early], last, inplace=[0])]
    program = memory.with_workspace_io(replace(make_program(calls, [early, last]), inputs=(x,)))
    plan = memory.plan(program)
    memory.prove(program, plan)
    replay(program, plan)
    assert plan.size == 128


def test_inputs_lie_apart_from_one_another_even_if_nothing_reads_them():
    arrays = {"unused": np.zeros((65,), np.int8), "x": np.zeros((20,), np.int8)}
    module = module_of(arrays, {"y": lambda v: ir.call("nn.pad", [v["x"], ir.const(0)], pad_width=((40, 12),))})
    factory = mlfc.build(module, "c -mcpu=cortex-m4", workspace_io=True)
    unused, x = (factory.plan.offset(value) for value in factory.program.inputs)
    assert x + 20 <= unused or unused + 65 <= x
    together = replace(factory.plan, offsets={**factory.plan.offsets, factory.program.inputs[1]: unused})
    with pytest.raises(InternalError, match="the input 'unused' shares bytes with another one"):
        memory.prove(factory.program, together)


@pytest.mark.parametrize("operator", ["nn.relu", "nn.max_pool2d"])
def test_the_list_of_blocks_knows_inputs_whose_place_the_first_call_takes(operator):
    x = np.zeros((1, 6, 6, 3), np.int8)
    attrs = {"pool_size": (2, 2), "layout": "NHWC"} if operator == "nn.max_pool2d" else {}
    module = module_of({"x": x}, {"y": lambda v: ir.call(operator, [v["x"]], **attrs)})
    factory = mlfc.build(module, "c -mcpu=cortex-m4", workspace_io=True)
    found = {block.name: block for block in memory.blocks(factory.program, factory.plan)}
    assert (found["x"].reuses, found["x"].reaches) == (None, ())
    assert found["y"].reuses is not None or found["y"].reaches


def test_pools_of_a_program_without_workspace_hold_nothing():
    module = module_of({"x": np.zeros((4,), np.float32)}, {"y": lambda v: ir.call("exp", [v["x"]])})
    plan = mlfc.build(module, pools=[Pool("fast", 64), Pool("slow")]).plan
    assert (plan.spans, plan.live, plan.size) == ((), (0,), 0)


def test_a_planted_fault_of_inputs_is_found():
    x, y, z = make_value("x", 64, "input"), make_value("y", 64, "output"), make_value("z", 64, "output")
    calls = [make_call([x], y), make_call([x], z)]
    program = memory.with_workspace_io(replace(make_program(calls, [y, z]), inputs=(x,)))
    plan = memory.plan(program)
    wrong = replace(plan, offsets=dict.fromkeys(plan.offsets, 0))
    with pytest.raises(InternalError, match="overlaps the input 'x'"):
        memory.prove(program, wrong)


def test_a_planted_fault_of_pools_is_found():
    a, b, y = make_value("a", 64), make_value("b", 64), make_value("y", 16, "output")
    program = make_program([make_call([], a), make_call([a], b), make_call([b], y)], [y])
    pools = [Pool("one", 64), Pool("two")]
    plan = memory.assign_pools(program, pools)
    assert [span.nbytes for span in plan.spans] == [64, 64]
    across = replace(plan, offsets={a: 32, b: plan.offset(b)})
    with pytest.raises(InternalError, match="'a' is not within the pool 'one'"):
        memory.prove_pools(program, across, pools)
    with pytest.raises(InternalError, match="the pool 'one' has 64 bytes of 63"):
        memory.prove_pools(program, plan, [Pool("one", 63), Pool("two")])


def kernel_program():
    """Return a real program: a small tensor that a dense layer reads repeatedly, and a large one read once."""
    rng = np.random.default_rng(0)
    weight = ir.Constant(rng.standard_normal((200, 16)).astype(np.float32), "weight")
    scale = ir.Constant(rng.standard_normal((1, 200)).astype(np.float32), "scale")
    module = module_of(
        {"x": np.zeros((1, 16), np.float32)},
        {
            "y": lambda v: ir.call(
                "nn.softmax",
                [ir.call("multiply", [ir.call("nn.dense", [ir.call("nn.relu", [v["x"]]), weight], units=200), scale])],
            )
        },
    )
    return mlfc.build(module, "c -mcpu=cortex-m4").program


def test_traffic_counts_what_loops_move():
    program = kernel_program()
    dense = next(kernel for kernel in program.kernels if kernel.macs == 200 * 16)
    moved = traffic(dense)
    # every weight is read once with any tiles; the data is read, and the output written, at least once
    weight = max(dense.constants, key=lambda buffer: buffer.nbytes)
    assert moved[weight] == weight.nbytes
    assert moved[dense.inputs[0]] >= 16 * 4
    assert moved[dense.output] >= 200 * 4


def test_hot_blocks_go_into_the_first_pool():
    program = kernel_program()
    values = {value.nbytes: value for value in program.intermediates()}
    small, large = values[64], values[800]
    plan = memory.assign_pools(program, [Pool("fast", 100), Pool("slow")])
    assert plan.place(plan.offset(small))[0].name == "fast"
    assert plan.place(plan.offset(large))[0].name == "slow"


def test_pools_that_are_too_small_are_named_with_the_layer():
    a, b, y = make_value("a", 100), make_value("b", 60), make_value("y", 16, "output")
    program = make_program([make_call([], a), replace(make_call([a], b), nodes=("conv/1",)), make_call([b], y)], [y])
    with pytest.raises(BudgetError) as caught:
        memory.assign_pools(program, [Pool("fast", 40), Pool("slow", 110)])
    text = str(caught.value)
    assert caught.value.exit_status == 1
    assert "'slow' of 110 bytes would need 164, 54 more" in text
    assert "conv/1 with 160 live bytes" in text
    assert "a (100), b (60)" in text
    assert "fast (40)" in text


def test_what_one_order_cannot_place_the_other_may():
    # by access density, the small block would occupy the only pool that fits the large one
    hot, cold, y = make_value("hot", 64), make_value("cold", 128), make_value("y", 16, "output")
    program = make_program([make_call([], hot), make_call([hot], cold), make_call([hot, cold], y)], [y])
    pools = [Pool("large", 128), Pool("small", 64)]
    plan = memory.assign_pools(program, pools)
    memory.prove_pools(program, plan, pools)
    replay(program, plan)


def test_constants_that_are_read_most_go_first_and_all_have_a_place():
    rng = np.random.default_rng(0)
    once, often = (ir.Constant(rng.standard_normal(shape).astype(np.float32)) for shape in ((1, 40, 40, 8), (8, 8)))
    x = np.zeros((1, 40, 40, 8), np.float32)
    module = module_of(
        {"x": x},
        {
            "y": lambda v: ir.call(
                "add",
                [
                    ir.call("nn.dense", [ir.call("reshape", [v["x"]], newshape=(1600, 8)), often], units=8),
                    ir.call("reshape", [once], newshape=(1600, 8)),
                ],
            )
        },
    )
    program = mlfc.build(module, "c -mcpu=cortex-m4").program
    by_size = sorted(program.constants, key=lambda value: value.nbytes)
    places = memory.assign_constants(program, [ConstantPool("fast", by_size[-1].nbytes), ConstantPool("slow")])
    assert places[by_size[0]].name == "fast"
    assert places[by_size[-1]].name == "slow"
    used = {value for call in program.calls for value in call.constants}
    needed = sum(-(-value.nbytes // 64) * 64 for value in used)
    for room, names in ((needed, {"fast"}), (needed - 1, {"fast", "slow"})):
        places = memory.assign_constants(program, [ConstantPool("fast", room), ConstantPool("slow")])
        assert set(places) == used
        assert {pool.name for pool in places.values()} == names
    with pytest.raises(BudgetError, match=r"(?s)do not fit.*the largest: .*weight"):
        memory.assign_constants(program, [ConstantPool("tiny", 1000)])
    assert memory.assign_constants(program, []) == {}


@pytest.mark.parametrize(
    "memory_options",
    [
        {"pools": (Pool("Upper", 1),)},
        {"pools": (Pool("int", 1),)},
        {"pools": (Pool('x"; evil', 1),)},
        {"pools": (Pool("a", 0),)},
        {"pools": (Pool("a"), Pool("a"))},
        {"pools": (Pool("a"),), "constants": (ConstantPool("a", external=True),)},
    ],
)
def test_impossible_memories_are_refused(memory_options):
    with pytest.raises(OptionError):
        MemoryOptions(**memory_options)


def test_all_that_is_wrong_with_memories_is_said_at_once():
    with pytest.raises(ProblemsError) as caught:
        MemoryOptions(pools=(Pool("A"), Pool("b", 0)), constants=(ConstantPool("c"), ConstantPool("c")))
    assert len(caught.value.problems) == 3


def test_a_loop_of_varying_length_counts_as_its_longest():
    b = tb.StmtBuilder()
    data, out = Buffer("data", (10,), "float32"), Buffer("out", (10,), "float32")
    with b.loop(10, "i") as i, b.loop(i % 4 + 1, "k") as k:
        b.store(out, [i], tb.load(data, [k]))
    moved = traffic(PrimFunc("kernel", (data,), (), out, (), b.finish()))
    assert moved == {data: 10 * 4 * 4, out: 10 * 4 * 4}
