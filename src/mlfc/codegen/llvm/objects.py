"""Objects that LLVM compiles when their bytes are first read, and the constants in them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cached_property

import llvmlite.binding as llvm
import numpy as np
from llvmlite import ir

from mlfc.codegen.constants import ALIGNMENT, ConstantTable, section
from mlfc.codegen.llvm.context import INT8
from mlfc.codegen.llvm.machine import Machine
from mlfc.errors import InternalError
from mlfc.objfile.write import RODATA, DataPiece, object_like
from mlfc.support import dtypes
from mlfc.support.content import ArrayContent, Data, chunks_of, nbytes_of, to_bytes
from mlfc.tir.program import Value

_SPEED, _SIZE = 3, 2
_QUICK = 1
_level: ContextVar[int] = ContextVar("level", default=_SPEED)


_WORD = 4


@contextmanager
def compiled_quickly() -> Iterator[None]:
    """Compile objects that are first read in the block at LLVM's level 1: three quarters of the time, the same bits.

    Kernels are as fast, because they are printed with vectors and LLVM still vectorizes the other loops. Level 0 would
    not fuse products with sums.
    """
    token = _level.set(_QUICK)
    try:
        yield
    finally:
        _level.reset(token)


def _level_of(optimize: str) -> int:
    return _level.get() if optimize == "speed" else _SIZE


def parse(module: ir.Module | str, machine: Machine) -> llvm.ModuleRef:
    """Return a module, or its text, parsed by LLVM: verified, and with the machine's data layout."""
    if not isinstance(module, str):
        module.triple = machine.triple
        module.data_layout = machine.data_layout()
    try:
        parsed = llvm.parse_assembly(str(module), llvm.create_context())
        parsed.verify()
    except RuntimeError as error:
        raise InternalError(f"LLVM rejected the code of a module: {error}") from error
    return parsed


def optimize_module(parsed: llvm.ModuleRef, machine: Machine, optimize: str = "speed") -> None:
    """Run the optimization passes over a module, for ``speed`` or ``size``."""
    level = _level_of(optimize)
    options = llvm.create_pipeline_tuning_options(speed_level=level)
    for choice in ("loop_vectorization", "slp_vectorization", "loop_interleaving", "loop_unrolling"):
        setattr(options, choice, optimize == "speed")
    builder = llvm.create_pass_builder(machine.target_machine(level), options)
    builder.getModulePassManager().run(parsed, builder)


def compile_object(module: ir.Module | str, machine: Machine, optimize: str = "speed") -> bytes:
    """Return the object file of a module, optimized for ``speed`` or ``size``."""
    parsed = parse(module, machine)
    optimize_module(parsed, machine, optimize)
    level = _level_of(optimize)
    return bytes(machine.target_machine(level).emit_object(parsed))


@dataclass(eq=False)
class ConstantGlobals:
    """The constants of a table as globals of a module, created on first use."""

    module: ir.Module
    table: ConstantTable
    is_elf: bool  # whether section names follow ELF's conventions
    _made: dict[str, ir.GlobalVariable] = field(default_factory=dict)

    def get(self, value: Value) -> ir.GlobalVariable:
        """Return the global of a constant."""
        symbol = self.table.symbol(value)
        if symbol not in self._made:
            elements = ir.ArrayType(INT8, max(1, value.root.nbytes))
            made = self._made[symbol] = ir.GlobalVariable(self.module, elements, symbol)
            made.global_constant = True
            constant = self.table.defined(value.root)
            if constant is not None and not self.table.in_blob:
                made.initializer = ir.Constant(elements, bytearray(to_bytes(ArrayContent(constant.data)) or b"\0"))
                made.linkage = "internal"
                made.align = max(_WORD, dtypes.nbytes(constant.value.dtype)) if self.table.packed else ALIGNMENT
                if constant.memory and self.is_elf:
                    made.section, made.align = section(constant.memory), ALIGNMENT
        return self._made[symbol]


def data_pieces(table: ConstantTable) -> Iterator[DataPiece]:
    """Yield the constants of a table, for an object that contains nothing else."""
    for item in table.constants:
        place = section(item.memory) if item.memory else RODATA
        data = ArrayContent(np.ascontiguousarray(item.data))
        yield DataPiece(table.symbol(item.value), data, place)


def is_elf(machine: Machine) -> bool:
    """Return whether objects for a machine are ELF files."""
    return str(llvm.get_object_format(machine.triple)) == "ELF"


@dataclass(eq=False)
class CompiledObject:
    """An object compiled by LLVM."""

    make: Callable[[], ir.Module]  # returns the module
    machine: Machine
    optimize: str  # ``speed`` or ``size``
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def text(self) -> str:
        """The module's IR before optimization."""
        return str(self.make())

    @property
    def assembly(self) -> str:
        """The machine code as text."""
        parsed = parse(self.text, self.machine)
        optimize_module(parsed, self.machine, self.optimize)
        return str(self.machine.target_machine().emit_assembly(parsed))

    @cached_property
    def _object(self) -> bytes:
        return compile_object(self.make(), self.machine, self.optimize)

    @property
    def nbytes(self) -> int:
        """The size of the object in bytes."""
        return len(self.code())

    def chunks(self) -> Iterator[bytes]:
        """Yield the object."""
        yield self.code()

    def code(self) -> bytes:
        """Return the object, which is compiled on the first call only."""
        with self._lock:
            return self._object


@dataclass(eq=False)
class ConstantsObject:
    """An object that contains only constants."""

    pieces: tuple[DataPiece, ...]
    machine: Machine

    @cached_property
    def _object(self) -> Data:
        module = ir.Module("constants")
        form = str(llvm.get_object_format(self.machine.triple))
        # an empty object, whose header describes the same machine
        head = compile_object(module, self.machine, "size")
        written = object_like(head, form, self.pieces)
        if written is not None:
            return written
        for piece in self.pieces:
            data = bytearray(to_bytes(piece.data))
            made = ir.GlobalVariable(module, ir.ArrayType(INT8, len(data)), piece.symbol)
            made.initializer = ir.Constant(made.value_type, data)
            made.global_constant, made.align = True, ALIGNMENT
        return compile_object(module, self.machine, "size")

    @property
    def nbytes(self) -> int:
        """The size of the object in bytes."""
        return nbytes_of(self._object)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the object's bytes; those of constants are not copied."""
        yield from chunks_of(self._object)
