"""The abilities of targets, for templates and printers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from mlfc.errors import OptionError, unknown
from mlfc.registry import Registry
from mlfc.support.levels import LEVEL_VARIABLE
from mlfc.support.platforms import host_arch
from mlfc.target.tuned import Tuned

LLVM_OPTIONS = ("-mtriple", "-mattr", "-mfloat-abi", "-mabi")
"""How target strings describe a machine to LLVM, in the order in which `target.llvm` names them."""


@dataclass(frozen=True)
class InstructionSet:
    """A family of instructions for which templates, passes or printers have forms of their own."""

    name: str
    machines: str  # a regular expression for the first word of LLVM triples of machines that may have it
    probe: str  # LLVM IR that LLVM compiles to such instructions
    shows: str  # a regular expression for those instructions in LLVM's assembly
    attribute: str = ""  # LLVM's feature for it, as in ``-mattr=+...``, if there is one
    replaces: tuple[str, ...] = ()  # families whose templates are not used where this one is there
    # the family before whose templates its own are asked: ``plain``, for microcontrollers, or ``vector``; empty for one
    # that has none and only prints intrinsics differently
    before: str = ""
    # intrinsics that operators should leave whole, because it has instructions for them
    intrinsics: frozenset[str] = frozenset()
    title: str = ""  # what boards call it, if it makes a difference between their cores: ``DSP``
    in_llvm: bool = True  # whether LLVM's code may have it; where not, kernels for its processors are without
    elf_attribute: int | None = None  # the build attribute of ELF objects that is not zero where they use it


INSTRUCTION_SETS: Registry[InstructionSet] = Registry("instruction set", "mlfc.isa")


def leading(names: Iterable[str]) -> tuple[str, ...]:
    """Return the families that none of the others replaces."""
    found = tuple(names)
    replaced = {other for name in found for other in INSTRUCTION_SETS.get(name).replaces}
    return tuple(name for name in found if name not in replaced)


@dataclass(frozen=True)
class VectorWidth:
    """A width of vector registers."""

    nbytes: int
    shows: str  # a regular expression for the product of such vectors of 16-bit numbers in LLVM's assembly
    condition: str = ""  # of the preprocessor, where C compilers have vectors wider than 16 bytes


@dataclass(frozen=True)
class Vectors:
    """The vectors of the machines with some triples."""

    machines: str  # a regular expression for the first word of these triples
    widths: tuple[VectorWidth, ...]  # the widest first


VECTORS: Registry[Vectors] = Registry("vector registers", "mlfc.isa")


@dataclass(frozen=True)
class Features:
    """Abilities of a target."""

    # width of the vectors that templates write with, 0 for a core without useful vectors (Cortex-M); 64 is also right
    # for machines with registers of 16 or 32 bytes: compilers split such vectors
    vector_bytes: int = 64
    vector_registers: int = 16  # registers of `vector_bytes` that a tile may fill
    # 32: weights are in the order of tiles that fill so many registers, so that kernels for either number read the same
    packing_registers: int = 0
    # the int8 templates may use ``dot4_u8s8``: its portable form is right everywhere, so this chooses a loop's shape
    dot4: bool = True
    # keys of INSTRUCTION_SETS whose templates and passes the code may use, the best first
    instruction_sets: tuple[str, ...] = ()
    fixed_point_lanes: int = 0  # int32 of the vectors in which results are requantized; 0: compilers find vectors
    pushes_bytes: bool = False  # depthwise layers keep the rows of a window in the bytes of lanes
    gpu: bool = False  # kernels are launched over a grid of work-groups; templates bind loops to groups and their items
    group_items: int = 256  # most work-items of a group
    shared_bytes: int = 32768  # most bytes that the work-items of a group may have together
    prefetches: bool = False  # kernels ask for weights before they need them
    # kernels are few bytes rather than the last per cent of speed: one kind of tile, loops that are not spelled out
    compact: bool = False
    winograd: bool = False  # float32 convolutions may be computed by transforms, in which rounding errors grow
    wide_double: bool = True  # C's double has 64 bits
    float_unit: bool = True  # float32 is compared and added by instructions, mostly: cores may come without the unit
    optimize: str = "speed"  # ``speed`` or ``size``
    # by level, what processors can do for which a library has kernels beside those for all of its architecture
    levels: tuple[tuple[str, Features], ...] = ()
    tuned: Tuned | None = None  # what measurements chose for kernels, instead of what templates' rules say

    @property
    def is_microcontroller(self) -> bool:
        """Whether it is a core that runs no operating system, hence no other runtime."""
        return self.vector_bytes == 0 and not self.gpu

    def has(self, instruction_set: str) -> bool:
        """Return whether code may use the templates of an instruction set."""
        return instruction_set in self.instruction_sets

    def keeps(self, intrinsic: str) -> bool:
        """Return whether the target has instructions for an intrinsic, which should stay whole."""
        return any(intrinsic in INSTRUCTION_SETS.get(name).intrinsics for name in self.instruction_sets)


def without_transforms(features: Features) -> Features:
    """Return the abilities of a target for sums in the references' order alone."""
    levels = tuple((name, replace(level, winograd=False)) for name, level in features.levels)
    return replace(features, winograd=False, levels=levels)


PLAIN = Features(vector_bytes=0, vector_registers=0, dot4=False, float_unit=False)
"""Of a core that has neither vectors nor instructions that templates are written for."""


@dataclass(frozen=True)
class Cpu:
    """A processor that target strings may name."""

    features: Features
    architecture: str = ""  # of a microcontroller, the first word of its LLVM triple: ``thumbv7em``
    runs: tuple[str, ...] = ()  # other such words, of code that it runs too
    # the processor that it is but for one instruction set: what was measured for that one holds for the kernels that
    # are the same, and LLVM's code is for that one where LLVM's code has no such instructions
    base: str = ""
    # features of LLVM's generic processor that make it this one, where LLVM has no name for it
    llvm: str | None = None


LIBRARY_CPUS: Registry[str] = Registry("processor that loads libraries", "mlfc.isa")
"""By the first letters of names of processors, LLVM's included: the architecture of their machines."""

CPUS: Registry[Cpu] = Registry("cpu", "mlfc.isa")
CPUS.add("generic", Cpu(Features()))


AUTO = "auto"
"""Instead of a processor: kernels for several levels, of which a library chooses one when it is loaded."""


@dataclass(frozen=True)
class Level:
    """What processors of an architecture have, or some of them."""

    name: str
    features: Features
    flags: tuple[str, ...]  # of gcc and clang
    zig: str  # behind zig's ``-mcpu=``, without which it compiles for the processor it runs on
    both: tuple[str, ...] = ()  # flags of every compiler
    # the kernels that are faster than those of the level before: ``bytes``, those that read or write any; ``floats``,
    # those that have floats and no bytes; ``templates``, those that templates write for it alone; empty: all
    serves: str = ""
    condition: str = ""  # of the preprocessor, where systems can have the level, if not all of the architecture's
    # LLVM's processor and features; None where code by LLVM would be no faster than that of the level before
    llvm: tuple[str, str] | None = None

    @property
    def symbol(self) -> str:
        """What ends names of functions and files."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Levels:
    """The levels of an architecture: first what all its processors have, then each has what those before it have.

    Kernels that a level does not serve are, at this level, those of a level before it.
    """

    condition: str  # of the preprocessor, where C is compiled for the architecture
    levels: tuple[Level, ...]
    # files of C: includes, and the function ``static int mlf_level_here(void)``, which returns the place of the
    # highest level that processor and operating system have
    choice: tuple[Path, ...]
    # what compilers call native is at least the level of the processor; not so on AArch64, where they may leave out
    # dot products, and know no size of vectors of SVE
    is_native: bool = True
    # of the processor of this process, what `native_cpu` asks for; of architectures but x86-64, names of levels
    flags: Callable[[], set[str]] = set
    is_chosen: bool = False  # the processor has the last level, so there is no choice to make

    @property
    def higher(self) -> tuple[Level, ...]:
        """All but the first."""
        return self.levels[1:]

    def chosen(self, name: str) -> Levels | None:
        """Return the levels up to one that needs several files of C, each compiled for its own level; None for others.

        That is so where a level does not serve all kernels, and compilers' native does not stand for it.
        """
        place = next((place for place, level in enumerate(self.levels) if level.name == name), 0)
        return None if self.is_native or not place else replace(self, levels=self.levels[: place + 1], is_chosen=True)


LEVELS: Registry[Levels] = Registry("architecture with levels", "mlfc.isa")
"""By architecture, in `support.platforms.Platform`'s words."""


def levels_of_host() -> Levels | None:
    """Return the levels of this machine's architecture, if it has any."""
    arch = host_arch()
    return LEVELS.get(arch) if arch in LEVELS else None


def processor_abilities() -> set[str]:
    """Return what the system says of the processor this runs on; nothing where it says none."""
    levels = levels_of_host()
    return set() if levels is None else levels.flags()


def native_cpu() -> str:
    """Return the key of CPUS that fits the machine this runs on."""
    flags, levels = processor_abilities(), levels_of_host()
    if host_arch() != "x86_64":
        higher = takewhile(lambda level: level.name in flags, levels.higher if levels else ())
        return "generic" if levels is None else [levels.levels[0], *higher][-1].name
    if {"avx512_vnni", "amx_tile", "amx_int8", "amx_bf16"} <= flags:
        return "sapphirerapids"
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= flags:
        return "x86-64-v4"
    return "generic" if not flags else "x86-64-v3" if "avx2" in flags else "x86-64"


def flagged_level(cpu: str) -> Level | None:
    """Return the level that `cpu` names, if this processor has it and its code needs other flags than native ones."""
    known, native = levels_of_host(), native_cpu()
    name = cpu.partition("+")[0]
    names = [level.name for level in known.levels] if known else []
    if known is None or not {name, native} <= set(names) or names.index(name) > names.index(native):
        return None
    return None if known.is_native and name == native else known.levels[names.index(name)]


def native_products() -> str:
    """Return the instruction set for products of bytes that the machine this runs on has beside those of its level."""
    return "avx512vnni" if native_cpu() == "x86-64-v4" and "avx512_vnni" in processor_abilities() else ""


def level_here(levels: Levels) -> tuple[Level, bool]:
    """Return the level of the processor this runs on, or that of `LEVEL_VARIABLE`; and whether it is compilers' native.

    Raises OptionError for a level that there is not, or that the processor lacks.
    """
    names, native = [level.name for level in levels.levels], native_cpu()
    if native == "x86-64-v4" and not native_products():
        native = "x86-64-v3"  # the level has VNNI; libraries choose the same
    highest = names.index(native) if native in names else 0
    asked = os.environ.get(LEVEL_VARIABLE, "")
    if asked and asked not in names[: highest + 1]:
        raise OptionError(
            f"this processor lacks '{asked}'" if asked in names else unknown("level of processors", asked, names),
            place=LEVEL_VARIABLE,
            next_step=f"Set it to one of: {', '.join(names[: highest + 1])}. Or unset it",
        )
    place = names.index(asked) if asked else highest
    return levels.levels[place], place == highest and levels.is_native
