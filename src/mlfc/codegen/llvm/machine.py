"""The target processor of LLVM code, and the features for which mlfc itself selects instructions.

They are detected through LLVM: a few functions are compiled for the processor, and the instructions in their assembly
are inspected. A second table of processors and features, which could fall behind LLVM's, is unnecessary.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property

import llvmlite.binding as llvm

from mlfc.codegen.writer import text_beside
from mlfc.errors import OptionError
from mlfc.support import dtypes
from mlfc.target.features import AUTO, VECTORS, leading
from mlfc.target.llvm import (
    ABI,
    ATTRIBUTES,
    TRIPLE,
    architecture,
    find_instructions,
    find_target,
    host_triple,
    llvm_cpu,
    llvm_features,
)
from mlfc.target.target import Target
from mlfc.tir.forms import LLVM_FORMS

_FREESTANDING = ("none", "elf", "eabi", "eabihf", "unknown")


_WIDEST = 64
_LIBRARY = {"float32": "fmaf", "float64": "fma"}


@dataclass(frozen=True)
class Machine:
    """CPU features that affect kernel code generation."""

    triple: str  # this and the next three in LLVM's syntax
    cpu: str
    features: str = ""
    abi: str = ""
    vector_bytes: int = 0  # of an integer register; 0 without vectors
    # the supported instruction sets, each with an instruction that identifies it
    instructions: tuple[tuple[str, str], ...] = ()
    # float dtypes that the processor multiplies and adds in one instruction with one rounding
    fused: frozenset[str] = frozenset()

    @property
    def architecture(self) -> str:
        """The first word of the triple: ``x86_64``, ``aarch64``, ..."""
        return architecture(self.triple)

    @property
    def instruction_sets(self) -> tuple[str, ...]:
        """The names of the supported instruction sets."""
        return tuple(name for name, _ in self.instructions)

    @cached_property
    def fills_registers(self) -> frozenset[str]:
        """Intrinsics whose accumulators occupy all registers of this machine."""
        names = (name for name in leading(self.instruction_sets) if name in LLVM_FORMS)
        return frozenset().union(*(LLVM_FORMS.get(name).fills_registers for name in names))

    def instruction(self, instruction_set: str) -> str:
        """Return the instruction that identifies an instruction set; empty if the processor does not support it."""
        return dict(self.instructions).get(instruction_set, "")

    def fuses(self, dtype: str) -> bool:
        """Return whether a product and a sum of this dtype are fused into one instruction."""
        return dtypes.element(dtype) in self.fused

    @property
    def converts_halves(self) -> bool:
        """True if the CPU converts between float16 and float32; x86-64 does if it has fused multiply-add."""
        return self.architecture == "aarch64" or (self.architecture == "x86_64" and self.fuses("float32"))

    def target_machine(self, level: int = 3) -> llvm.TargetMachine:
        """Return LLVM's compiler for the processor, at a level of optimization from 0 to 3."""
        return _target_machine(self.triple, self.cpu, self.features, self.abi, level)

    def data_layout(self) -> str:
        """Return LLVM's data layout string: the sizes and alignments of types."""
        return str(self.target_machine().target_data)


def machine_of(target: Target, level: str | None = None) -> Machine:
    """Return the machine of a target or, if it has several processor levels, of a level (default: the base level).

    If LLVM generates the same code for a level as for the one before it, return the machine of that level.

    Raises
    ------
    OptionError
        If LLVM does not know the triple, or the processor is big-endian.
    """
    triple = target.options.get(TRIPLE) or host_triple()
    find_target(triple)
    if target.mcpu == AUTO:
        target = target.at_level(level)
    mcpu, attributes = target.mcpu, target.options.get(ATTRIBUTES, "")
    cpu, features = llvm_cpu(triple, mcpu), llvm_features(triple, mcpu, attributes)
    found = tuple(find_instructions(triple, mcpu, attributes).items())
    return _examined(triple, cpu, features, target.options.get(ABI, ""), found)


@cache
def _target_machine(triple: str, cpu: str, features: str, abi: str, level: int) -> llvm.TargetMachine:
    arch = architecture(triple)
    # firmware is linked to fixed addresses; all other code may be loaded anywhere
    words = triple.split("-")
    reloc = "static" if len(words) > 2 and words[-1] in _FREESTANDING else "pic"
    # RISC-V's small model addresses only the lowest 2 GiB, where few boards have memory
    model = "medium" if arch.startswith("riscv") else "default"
    return find_target(triple).create_target_machine(
        cpu=cpu, features=features, opt=level, reloc=reloc, codemodel=model, abiname=abi
    )


@cache
def _examined(triple: str, cpu: str, features: str, abi: str, found: tuple[tuple[str, str], ...]) -> Machine:
    compiler = _target_machine(triple, cpu, features, abi, 2)
    layout = str(compiler.target_data)
    if layout.startswith("E"):
        raise OptionError(f"expected a little-endian machine, got '{triple}'", next_step="Use the target 'c'")
    arch = architecture(triple)
    widths = next((entry.widths for entry in map(VECTORS.get, VECTORS) if re.match(entry.machines, arch)), ())
    size = widths[0].nbytes if widths else 16
    probes = text_beside(__file__, "probes.ll").replace("$halves", str(size // 2))
    module = f'target datalayout = "{layout}"\ntarget triple = "{triple}"\n{probes}'
    text = str(compiler.emit_assembly(llvm.parse_assembly(module, llvm.create_context())))
    # the lines of a function
    lanes = re.split(r"^_?[a-z]+:", text.partition("lanes:")[2], maxsplit=1, flags=re.MULTILINE)[0]
    vector_bytes = next((width.nbytes for width in widths if re.search(width.shows, lanes)), 0)
    calls = {dtype: re.search(rf"(?<![\w.]){name}\b", text) for dtype, name in _LIBRARY.items()}
    if vector_bytes == _WIDEST:  # kernels use the widest registers anyway, so other loops may use them, too
        features = ",".join(part for part in (features, "-prefer-256-bit") if part)
    return Machine(
        triple,
        cpu,
        features,
        abi,
        vector_bytes,
        found,
        fused=frozenset(dtype for dtype, call in calls.items() if call is None),
    )
