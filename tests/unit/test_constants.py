"""Tables of a module's constants, and code generated from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mlfc.codegen.constants import ConstantTable
from mlfc.codegen.llvm.code import empty_module
from mlfc.codegen.llvm.machine import machine_of
from mlfc.codegen.llvm.objects import ConstantGlobals, data_pieces
from mlfc.target.target import parse_target
from mlfc.tir.program import Value


def values(count: int) -> list[Value]:
    return [
        Value(f"weight{number}", (4,), "int32", "constant", np.full(4, number, np.int32)) for number in range(count)
    ]


@pytest.mark.parametrize("form", ["c", "assembler", "llvm", "pieces"])
def test_work_grows_with_the_number_of_constants_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    asked = 0
    own: Any = Value.nbytes

    def counted(value: Value) -> Any:
        nonlocal asked
        asked += 1
        return own.fget(value)

    constants = values(100)
    table = ConstantTable(constants, "model")
    monkeypatch.setattr(Value, "nbytes", property(counted))
    if form == "llvm":
        made = ConstantGlobals(empty_module("model", machine_of(parse_target("llvm"))), table, is_elf=True)
        assert len({made.get(value).name for value in constants}) == len(constants)
    elif form == "pieces":
        assert len({piece.symbol for piece in data_pieces(table)}) == len(constants)
    else:
        text = table.declarations() if form == "c" else table.assembler().splitlines()
        assert sum("constant_weight" in line for line in text) == len(constants)
    assert asked <= 5 * len(constants)
