"""Objects that LLVM makes when their bytes are first asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import llvmlite.binding as llvm
from llvmlite import ir

from mlfc.codegen.constants import ALIGNMENT
from mlfc.codegen.llvm.llvm_types import INT8
from mlfc.codegen.llvm.machine import Machine
from mlfc.codegen.llvm.optimize import compile_object, optimize_module, parse
from mlfc.objfile.write.blocks import DataPiece
from mlfc.objfile.write.coff import coff_machine_of, coff_object
from mlfc.objfile.write.elf import elf_machine_of, elf_object
from mlfc.objfile.write.macho import macho_machine_of, macho_object
from mlfc.support.content import Data, chunks_of, nbytes_of, to_bytes


def is_elf(machine: Machine) -> bool:
    """Tell whether objects for a machine are ELF files."""
    return str(llvm.get_object_format(machine.triple)) == "ELF"


@dataclass(eq=False)
class CompiledObject:
    """An object of LLVM code.

    Attributes
    ----------
    make : callable
        Writes the module.
    machine : Machine
    optimize : str
        ``speed`` or ``size``.
    """

    make: Callable[[], ir.Module]
    machine: Machine
    optimize: str
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def text(self) -> str:
        """The module as LLVM writes it, before any optimization."""
        return str(self.make())

    @property
    def assembly(self) -> str:
        """What the processor runs, as text."""
        parsed = parse(self.text, self.machine)
        optimize_module(parsed, self.machine, self.optimize)
        return str(self.machine.target_machine().emit_assembly(parsed))

    @cached_property
    def _object(self) -> bytes:
        return compile_object(self.make(), self.machine, self.optimize)

    @property
    def nbytes(self) -> int:
        """How many bytes the object has."""
        return len(self.code())

    def chunks(self) -> Iterator[bytes]:
        """Yield the object."""
        yield self.code()

    def code(self) -> bytes:
        """Return the object; it is compiled once, whoever asks first."""
        with self._lock:
            return self._object


@dataclass(eq=False)
class ConstantsObject:
    """An object that holds constants and nothing else.

    Attributes
    ----------
    pieces : tuple of DataPiece
    machine : Machine
    """

    pieces: tuple[DataPiece, ...]
    machine: Machine

    @cached_property
    def _object(self) -> Data:
        module = ir.Module("constants")
        form = str(llvm.get_object_format(self.machine.triple))
        # an object without anything: what its header says of the machine is true of this one too
        head = compile_object(module, self.machine, "size")
        if form == "ELF":
            return elf_object(self.pieces, elf_machine_of(head), hidden=True, stack_note=True)
        if form == "COFF":
            return coff_object(self.pieces, coff_machine_of(head), hidden=True)
        if form == "MachO":
            return macho_object(self.pieces, macho_machine_of(head), hidden=True)
        for piece in self.pieces:
            data = bytearray(to_bytes(piece.data))
            made = ir.GlobalVariable(module, ir.ArrayType(INT8, len(data)), piece.symbol)
            made.initializer = ir.Constant(made.value_type, data)
            made.global_constant, made.align = True, ALIGNMENT
        return compile_object(module, self.machine, "size")

    @property
    def nbytes(self) -> int:
        """How many bytes the object has."""
        return nbytes_of(self._object)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """Yield the object's bytes; those of the constants from where they lie."""
        yield from chunks_of(self._object)
