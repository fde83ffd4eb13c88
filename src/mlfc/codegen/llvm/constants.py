"""Constants in LLVM's modules: small ones are globals, large ones lie in an object of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from llvmlite import ir

from mlfc.codegen.constant_pools import section
from mlfc.codegen.constants import ALIGNMENT, Constant, ConstantTable
from mlfc.codegen.llvm.llvm_types import INT8
from mlfc.objfile.write.blocks import RODATA, DataPiece
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, to_bytes
from mlfc.tir.ir import Value

_WORD = 4


@dataclass(eq=False)
class ConstantGlobals:
    """The constants of a table as globals of a module, made when they are asked for.

    Attributes
    ----------
    module : ir.Module
    table : ConstantTable
    is_elf : bool
        Whether sections have ELF's names.
    packed : bool
        They lie as close as their elements and word accesses allow.
    """

    module: ir.Module
    table: ConstantTable
    is_elf: bool
    packed: bool = False
    _made: dict[str, ir.GlobalVariable] = field(default_factory=dict)

    def get(self, value: Value) -> ir.GlobalVariable:
        """Return the global of a constant."""
        symbol = self.table.symbol(value)
        if symbol not in self._made:
            self._made[symbol] = self._global(symbol, value.root)
        return self._made[symbol]

    def _global(self, symbol: str, value: Value) -> ir.GlobalVariable:
        elements = ir.ArrayType(INT8, max(1, value.nbytes))
        made = ir.GlobalVariable(self.module, elements, symbol)
        made.global_constant = True
        constant = self.table.defined(value)
        if constant is not None and not self.table.in_blob:
            self._define(made, constant)
        return made

    def _define(self, made: ir.GlobalVariable, constant: Constant) -> None:
        data = to_bytes(ArrayContent(constant.data)) or b"\0"
        made.initializer = ir.Constant(made.value_type, bytearray(data))
        made.linkage = "internal"
        made.align = max(_WORD, dtypes.nbytes(constant.value.dtype)) if self.packed else ALIGNMENT
        if constant.memory and self.is_elf:
            made.section, made.align = section(constant.memory), ALIGNMENT


def data_pieces(table: ConstantTable) -> Iterator[DataPiece]:
    """Yield the constants of a table, for an object that holds nothing else."""
    for item in table.constants:
        place = section(item.memory) if item.memory else RODATA
        data = ArrayContent(np.ascontiguousarray(item.data))
        yield DataPiece(table.symbol(item.value), data, place)
