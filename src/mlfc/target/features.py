"""Features of targets, for templates and code generators, and tuning results: values of template parameters."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import TypeAlias

from mlfc.errors import OptionError, unknown
from mlfc.registry import Registry
from mlfc.support.c_names import LEVEL_VARIABLE
from mlfc.support.platforms import host_arch

Value: TypeAlias = "int | str | tuple[int, ...]"
Choices: TypeAlias = Mapping[str, str]
"""Values, in the form of `text_of`, by parameter name."""
TEMPLATES = 1
"""Version of the template parameters; increase it when the meaning of one changes."""
LLVM_OPTIONS = ("-mtriple", "-mattr", "-mfloat-abi", "-mabi")
"""Options of target strings that describe a machine to LLVM, in the order of the names in `target.llvm`."""


def text_of(value: Value) -> str:
    """Return a value as written in tuning logs: ``8``, ``1x7x4``, ``pixels``."""
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


@dataclass(frozen=True)
class TemplateParameter:
    """A tunable parameter of a template: the default of the template's rule, and the allowed values."""

    default: Value
    allowed: Callable[[], Sequence[Value]]  # evaluated only when tuning


@dataclass(frozen=True, eq=False)
class Tuned:
    """The choices for kernels of one processor, for `transform.lower_group`."""

    kernels: Mapping[str, Choices]
    # the choices of the processor whose weight packing is used, if kernels for several share the weights
    packing: Mapping[str, Choices] = field(default_factory=dict)
    # whether the choices are another processor's, so kernels of this one may have other parameters
    is_borrowed: bool = False
    used: set[str] = field(default_factory=set)  # keys of the kernels that were looked up
    refused: set[str] = field(default_factory=set)  # keys of kernels whose template lacks a chosen parameter or value


@dataclass(frozen=True)
class InstructionSet:
    """A family of instructions that templates, passes or code generators support."""

    name: str
    machines: str  # regular expression for the first word of LLVM triples of machines that may have it
    probe: str  # LLVM IR that compiles to such instructions
    shows: str  # regular expression for these instructions in LLVM's assembly
    attribute: str = ""  # LLVM's feature for it, as in ``-mattr=+...``, if any
    replaces: tuple[str, ...] = ()  # families whose templates are not used if this one is available
    # the family whose templates have lower priority: ``plain``, for microcontrollers, or ``vector``; empty for a family
    # without templates, which only prints intrinsics differently
    before: str = ""
    # intrinsics that must not be expanded, because the family has instructions for them
    intrinsics: frozenset[str] = frozenset()
    title: str = ""  # name in board descriptions, if cores of boards differ in it: ``DSP``
    in_llvm: bool = True  # whether the LLVM backend supports it; otherwise its kernels do not use it
    elf_attribute: int | None = None  # the ELF build attribute that is nonzero in objects that use it


INSTRUCTION_SETS: Registry[InstructionSet] = Registry("instruction set", "mlfc.isa")


def leading(names: Iterable[str]) -> tuple[str, ...]:
    """Return the families that no other one replaces."""
    found = tuple(names)
    replaced = {other for name in found for other in INSTRUCTION_SETS.get(name).replaces}
    return tuple(name for name in found if name not in replaced)


@dataclass(frozen=True)
class VectorWidth:
    """A width of vector registers."""

    nbytes: int
    shows: str  # regular expression for a 16-bit product of such vectors in LLVM's assembly
    condition: str = ""  # preprocessor condition for vectors wider than 16 bytes


@dataclass(frozen=True)
class Vectors:
    """The vector widths of machines, selected by triple."""

    machines: str  # regular expression for the first word of the triples
    widths: tuple[VectorWidth, ...]  # the widest first


VECTORS: Registry[Vectors] = Registry("vector registers", "mlfc.isa")


@dataclass(frozen=True)
class Features:
    """Features of a target."""

    # vector width that templates use; 0 for a core without useful vectors (Cortex-M). 64 is also suitable for registers
    # of 16 or 32 bytes: compilers split the vectors
    vector_bytes: int = 64
    vector_registers: int = 16  # registers of `vector_bytes` that a tile may fill
    # 32: weights are packed for tiles that fill so many registers, so that kernels for 16 and 32 share the packing
    packing_registers: int = 0
    # the int8 templates may use ``dot4_u8s8``, which has a portable form, so this only chooses the loop structure
    dot4: bool = True
    # keys of INSTRUCTION_SETS whose templates and passes may be used, best first
    instruction_sets: tuple[str, ...] = ()
    fixed_point_lanes: int = 0  # int32 lanes of requantization; 0: left to the compiler's vectorizer
    pushes_bytes: bool = False  # depthwise layers shift window rows through the bytes of a lane
    gpu: bool = False  # kernels are launched over a grid; templates bind loops to work-groups and work-items
    group_items: int = 256  # most work-items of a group
    shared_bytes: int = 32768  # most bytes of shared memory of a group
    prefetches: bool = False  # kernels prefetch weights
    # kernels prefer size to the last percent of speed: one kind of tile, no unrolled loops
    compact: bool = False
    winograd: bool = False  # float32 convolutions may use Winograd transforms, which increase rounding errors
    wide_double: bool = True  # C's double has 64 bits
    float_unit: bool = True  # float32 uses instructions; some cores lack the unit
    optimize: str = "speed"  # ``speed`` or ``size``
    # by name, features of the higher CPU levels for which a library has additional kernels
    levels: tuple[tuple[str, Features], ...] = ()
    tuned: Tuned | None = None  # tuned parameters, in place of the templates' rules

    @property
    def is_microcontroller(self) -> bool:
        """True for a core without an operating system, on which other runtimes are not available."""
        return self.vector_bytes == 0 and not self.gpu

    def has(self, instruction_set: str) -> bool:
        """Return whether the target has an instruction set."""
        return instruction_set in self.instruction_sets

    def keeps(self, intrinsic: str) -> bool:
        """Return whether the target has instructions for an intrinsic, which must not be expanded."""
        return any(intrinsic in INSTRUCTION_SETS.get(name).intrinsics for name in self.instruction_sets)


def without_transforms(features: Features) -> Features:
    """Return the features without Winograd transforms, so that sums have the references' order."""
    levels = tuple((name, replace(level, winograd=False)) for name, level in features.levels)
    return replace(features, winograd=False, levels=levels)


PLAIN = Features(vector_bytes=0, vector_registers=0, dot4=False, float_unit=False)
"""Features of a core without vectors or instructions that templates support."""


@dataclass(frozen=True)
class Cpu:
    """A processor, for ``-mcpu``."""

    features: Features
    architecture: str = ""  # for a microcontroller, the first word of its LLVM triple: ``thumbv7em``
    runs: tuple[str, ...] = ()  # architectures whose code it also runs
    # the processor that it extends by one instruction set: tuning results of the base apply to equal kernels, and the
    # LLVM backend uses the base if it does not support the instruction set
    base: str = ""
    # LLVM features to add to the generic processor, if LLVM has no name for this one
    llvm: str | None = None


LIBRARY_CPUS: Registry[str] = Registry("processor that loads libraries", "mlfc.isa")
"""Architectures of machines by prefix of processor names, including LLVM's."""

CPUS: Registry[Cpu] = Registry("cpu", "mlfc.isa")
CPUS.add("generic", Cpu(Features()))


AUTO = "auto"
"""In place of a processor: kernels for several levels, from which a library chooses when it is loaded."""


@dataclass(frozen=True)
class Level:
    """A CPU level: features that some processors of an architecture share."""

    name: str
    features: Features
    flags: tuple[str, ...]  # for gcc and clang
    zig: str  # value of zig's ``-mcpu=``, whose default is the processor that zig runs on
    both: tuple[str, ...] = ()  # flags for all compilers
    # the kernels that are faster than at the previous level: ``bytes``, if they access bytes; ``floats``, if they
    # have floats and no bytes; ``templates``, if templates write them only for this level; empty: all
    serves: str = ""
    condition: str = ""  # preprocessor condition for systems that can have the level, if not all can
    # LLVM's processor and features; None if LLVM's code would not be faster than at the previous level
    llvm: tuple[str, str] | None = None

    @property
    def symbol(self) -> str:
        """The suffix of names of functions and files."""
        return self.name.replace("-", "_")


@dataclass(frozen=True)
class Levels:
    """The levels of an architecture. All processors have the first; each level includes the previous ones.

    Kernels that a level does not serve are taken from a previous level.
    """

    condition: str  # preprocessor condition for the architecture
    levels: tuple[Level, ...]
    # C files: includes, and the function ``static int mlf_level_here(void)``, which returns the index of the highest
    # level that the processor and operating system support
    choice: tuple[Path, ...]
    # whether a compiler's native target includes the processor's level; not on AArch64, where compilers may omit dot
    # products, and do not assume an SVE vector length
    is_native: bool = True
    # returns the flags of this process's processor, for `native_cpu`; level names except on x86-64
    flags: Callable[[], set[str]] = set
    is_chosen: bool = False  # the processor has the last level, so no choice is necessary

    @property
    def higher(self) -> tuple[Level, ...]:
        """All levels except the first."""
        return self.levels[1:]

    def chosen(self, name: str) -> Levels | None:
        """Return the levels up to `name` if it requires several C files, each compiled for its own level; else None.

        This is the case if a level does not serve all kernels and is not the compilers' native target.
        """
        place = next((place for place, level in enumerate(self.levels) if level.name == name), 0)
        return None if self.is_native or not place else replace(self, levels=self.levels[: place + 1], is_chosen=True)


LEVELS: Registry[Levels] = Registry("architecture with levels", "mlfc.isa")
"""Levels by architecture, in the names of `support.platforms.Platform`."""


def levels_of_host() -> Levels | None:
    """Return the levels of this machine's architecture, if it has any."""
    arch = host_arch()
    return LEVELS.get(arch) if arch in LEVELS else None


def processor_abilities() -> set[str]:
    """Return the feature flags that the system reports for this processor; empty if unknown."""
    levels = levels_of_host()
    return set() if levels is None else levels.flags()


def native_cpu() -> str:
    """Return the key of CPUS for this machine."""
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
    """Return the level `cpu`, if this processor has it and its code requires flags other than native ones."""
    known, native = levels_of_host(), native_cpu()
    name = cpu.partition("+")[0]
    names = [level.name for level in known.levels] if known else []
    if known is None or not {name, native} <= set(names) or names.index(name) > names.index(native):
        return None
    return None if known.is_native and name == native else known.levels[names.index(name)]


def native_products() -> str:
    """Return the byte dot-product instruction set that this machine has beyond its level; empty if none."""
    return "avx512vnni" if native_cpu() == "x86-64-v4" and "avx512_vnni" in processor_abilities() else ""


def level_here(levels: Levels) -> tuple[Level, bool]:
    """Return this processor's level, or that of `LEVEL_VARIABLE`, and whether it is the compilers' native target.

    Raises OptionError for a level that is unknown, or that the processor lacks.
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
