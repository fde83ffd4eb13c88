"""The deepest path through a call graph, and the stack use of instructions."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlfc.micro.board.board import find_board
from mlfc.micro.memory.stack_bound import RULES, StackFrame, deepest, frame_sizes, interrupt_bytes, read_functions
from mlfc.micro.memory.stack_bound import _CallGraphNode as Function

# output of GNU objdump 2.40 for each architecture
ARM = """\
00000100 <leaf>:
 100:\tpush\t{r4, r5, r6, lr}
 102:\tvpush\t{d8-d11}
 106:\tsub.w\tsp, sp, #676\t@ 0x2a4
 10a:\tstr.w\tlr, [sp, #-8]!
 10e:\tcmp\tsp, r3
 110:\tmov\tsp, r7
 112:\tldmia.w\tsp!, {r4, r5, r6, pc}

00000116 <caller>:
 116:\tstmdb\tsp!, {r3, r4, r5, r6, r7, r8, r9, sl, fp, lr}
 11a:\tbl\t100 <leaf>
 11e:\tb.w\t130 <tail>

00000130 <tail>:
 130:\tbeq.n\t130 <tail>
 132:\tbx\tlr

00000134 <pointer>:
 134:\tblx\tr3
 136:\tsub\tsp, r2
 138:\tbl\t8000 <missing>
 13a:\tbl\t134 <pointer>

00000140 <entry_of_two>:
 140:\tpush\t{lr}
 142:\tnop

00000144 <second_entry>:
 144:\tbx\tlr
"""
RISCV = """\
80000000 <leaf>:
80000000:\tadd\tsp,sp,-80
80000002:\tsw\ts10,32(sp)
80000004:\tadd\tsp,sp,80
80000006:\tret

80000008 <saved>:
80000008:\tjal\tt0,80000100 <__riscv_save_4>
8000000c:\tauipc\tra,0x1
80000010:\tjalr\t-12(ra) # 80000000 <leaf>
80000014:\tjr\ta5

80000018 <switch>:
80000018:\tsll\ta5,a5,0x2
8000001a:\tadd\ta5,a5,a4
8000001c:\tlw\ta5,0(a5)
8000001e:\tjr\ta5

80000100 <__riscv_save_4>:
80000100:\tadd\tsp,sp,-64
80000102:\tsub\tsp,sp,t1
80000104:\tjr\tt0
"""
AVR = """\
00000100 <leaf>:
 100:\tpush\tr28
 102:\trcall\t.+0      \t; 0x104 <leaf+0x4>
 104:\tin\tr28, 0x3d\t; 61
 106:\tret

00000108 <caller>:
 108:\tcall\t0x100\t; 0x100 <leaf>
 10c:\tout\t0x3d, r28\t; 61
 10e:\tret
"""


def test_arm_instructions() -> None:
    found = read_functions(ARM, RULES["cortex-m"])
    assert found["leaf"].frame == 16 + 32 + 676 + 8
    assert not found["leaf"].untold_growth
    assert found["caller"].frame == 40
    assert found["caller"].callees == {"leaf", "tail"}
    # a loop is not a recursive call
    assert not found["tail"].callees
    assert (found["pointer"].untold_calls, found["pointer"].missing) == (["blx r3"], ["missing"])
    assert found["pointer"].untold_growth == ["sub sp, r2"]
    assert found["pointer"].callees == {"pointer"}
    assert found["entry_of_two"].runs_on == "second_entry"
    assert [name for name, item in found.items() if item.runs_on] == ["pointer", "entry_of_two"]


def test_riscv_instructions() -> None:
    found = read_functions(RISCV, RULES["riscv"])
    assert found["leaf"].frame == 80
    # the five registers saved by the helper remain on the stack after it returns
    assert found["saved"].frame == 32
    assert found["saved"].callees == {"leaf", "__riscv_save_4"}
    assert found["saved"].untold_calls == ["jr a5"]
    assert not found["switch"].untold_calls
    # it uses 64 bytes temporarily, of which 32 remain on the stack
    assert (found["__riscv_save_4"].frame, found["__riscv_save_4"].untold_growth) == (32, [])


def test_avr_instructions() -> None:
    found = read_functions(AVR, RULES["avr"])
    assert found["leaf"].frame == 3 + 1 + 3  # return address, a register, and room for two local bytes
    assert found["caller"].callees == {"leaf"}
    assert found["caller"].untold_growth == ["out 0x3d, r28"]


def function(frame: int, *callees: str, untold: str = "") -> Function:
    return Function(frame, callees, (untold,) if untold else ())


def test_the_deepest_way_is_found() -> None:
    graph = {
        "run": function(8, "small", "large"),
        "small": function(500),
        "large": function(100, "leaf", "other"),
        "leaf": function(420),
        "other": function(410),
        "unreached": function(9999, untold="calls through a pointer"),
    }
    bound = deepest("run", graph)
    assert bound.nbytes == 8 + 100 + 420
    assert bound.path == (StackFrame("run", 8), StackFrame("large", 100), StackFrame("leaf", 420))


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ({"run": function(8, "run")}, "calls itself: run -> run"),
        ({"run": function(8, "a"), "a": function(1, "b"), "b": function(1, "a")}, "calls itself: a -> b -> a"),
        ({"run": function(8, "a"), "a": function(1, untold="a uses stack that depends on data")}, "depends on data"),
        ({"main": function(8)}, "no function run"),
    ],
)
def test_what_cannot_be_told_is_said(graph: dict[str, Function], message: str) -> None:
    bound = deepest("run", graph)
    assert bound.nbytes is None
    assert message in bound.untold[0]


def label(*jumps: str, calls: tuple[str, ...] = ()) -> Function:
    return Function(0, (*jumps, *calls), (), frozenset(jumps), grows=False)


def test_labels_of_a_loop_in_assembler_are_no_recursion() -> None:
    graph = {
        "run": function(8, "divide", "inside"),
        "divide": label("loop"),
        "loop": label("inside", calls=("deep",)),
        "inside": label("loop", "exit"),
        "exit": label("divide"),
        "deep": function(100),
    }
    assert deepest("run", graph).nbytes == 108
    # from any label, and in any order
    for name in ("divide", "loop", "inside", "exit"):
        assert deepest("run", {**graph, "run": function(8, name)}).nbytes == 108
        assert deepest("run", {**graph, "run": function(8, "first", name), "first": function(1, "exit")}).nbytes == 109
    pushes = {**graph, "exit": Function(4, ("divide",), (), frozenset({"divide"}))}
    assert "calls itself" in deepest("run", pushes).untold[0]
    calls = {**graph, "exit": label(calls=("divide",))}
    assert "calls itself" in deepest("run", calls).untold[0]
    through_another = {**graph, "inside": label("loop", "exit", calls=("other",)), "other": function(4, "exit")}
    assert "calls itself" in deepest("run", through_another).untold[0]


def test_chains_of_calls_may_be_long() -> None:
    length = 20_000
    graph = {f"f{index}": function(1, f"f{index + 1}") for index in range(length)} | {f"f{length}": function(1)}
    assert deepest("f0", graph).nbytes == length + 1


def test_statements_of_the_compiler(tmp_path: Path) -> None:
    (tmp_path / "a.su").write_text(
        "src/a.c:1:9:one\t16\tstatic\nsrc/a.c:5:9:two.constprop\t24\tstatic\nsrc/a.c:9:1:one\t40\tdynamic\nnonsense\n"
    )
    found = frame_sizes(tmp_path)
    assert (found["one"].nbytes, found["one"].is_dynamic) == (40, True)
    assert (found["two"].nbytes, found["two"].is_dynamic) == (24, False)


def test_what_an_interrupt_pushes_depends_on_the_floating_point_unit() -> None:
    # Armv7-M: eight words, or 26 with floating-point registers, and one to align the stack to eight bytes
    assert interrupt_bytes(find_board("mps2-an385")) == 4 * (8 + 1)
    assert interrupt_bytes(find_board("mps2-an386")) == 4 * (26 + 1)
