"""Printing of statements of loop-level functions."""

from __future__ import annotations

from mlfc.codegen.c import print_function
from mlfc.tir import builder as tb
from mlfc.tir.ir import Buffer, Comment, Fence, Prefetch, PrimFunc, Seq


def test_fences_are_more_than_comments() -> None:
    x, y = Buffer("x", (1,), "int32"), Buffer("y", (1,), "int32")
    stmts = tb.StmtBuilder()
    stmts.store(y, [0], tb.load(x, [0]))
    prim = PrimFunc("copy", (x,), (), y, (), Seq((Comment("first"), Fence("then"), stmts.finish())))
    printed = print_function(prim)
    assert printed.needs.fences
    assert [line.strip() for line in printed.text.splitlines()[1:3]] == ["/* first */", "MLF_FENCE(0) /* then */"]


def test_prefetches_are_more_than_comments() -> None:
    x, y = Buffer("x", (2, 8), "int32"), Buffer("y", (1,), "int32")
    stmts = tb.StmtBuilder()
    stmts.store(y, [0], tb.load(x, [0, 0]))
    with stmts.loop(4, "i") as i:
        stmts.append(Prefetch("soon", x, i * 4))
    printed = print_function(PrimFunc("copy", (x,), (), y, (), stmts.finish()))
    assert printed.needs.prefetches
    assert "MLF_PREFETCH(&x[i * 4]); /* soon */" in printed.text
