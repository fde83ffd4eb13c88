"""Target strings: a kind and options in TVM's form: ``c -mcpu=cortex-m4``, ``llvm -mtriple=...``."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from mlfc.errors import OptionError, unknown
from mlfc.registry import Registry
from mlfc.support.platforms import arch_named, host_arch, parse_platform
from mlfc.target import features as abilities
from mlfc.target.features import AUTO, CPUS, LEVELS, LLVM_OPTIONS, Features, Levels, level_here, levels_of_host

# TVM options that the compiler ignores
_SILENT = ("-keys", "-model", "-march", "-device")

PORTABLE = "c"
"""For archives, and for commands that show or check what `mlfc compile` writes."""
EVERY_CPU = f"c -mcpu={AUTO}"
"""For libraries, and for models returned by `mlfc.compile`."""
MOST_ITEMS, MOST_SHARED = "-max_num_threads", "-max_shared_memory_per_block"
"""Device options: most work-items of a group, and most bytes of shared memory of a group."""
# byte dot products; old compilers lack the second, so -mcpu=native leaves it to the compiler
_PRODUCTS = {"+avx512vnni", "+avxvnni"}
# the minimum that templates require
_FEWEST_ITEMS, _LEAST_SHARED = 32, 4096


@dataclass(frozen=True)
class TargetKind:
    """A kind of target, which selects a code generator."""

    name: str
    options: tuple[str, ...] = ()  # options in addition to ``-mcpu``, each with one value: ``-mtriple``
    # the kind of device that runs the code, as in `runtime.Device`; None for host code
    device: str | None = None
    # completes the processor and options and returns them with the features; None: look up CPUS
    read: Callable[[str, dict[str, str]], tuple[str, dict[str, str], Features]] | None = None


TRIPLE = "-mtriple"
"""Option for the machine; with ``-mcpu=auto``, for the architecture whose levels are used."""
ATTRIBUTES = "-mattr"
"""Option for instructions that are optional within a level; for ``c``, only those of x86."""

WINOGRAD = "-winograd"
"""Option for Winograd convolutions: ``auto``, where they are faster, or ``off``."""


def _read_c(mcpu: str, options: dict[str, str]) -> tuple[str, dict[str, str], Features]:
    if mcpu == AUTO:
        arch = _library_arch(options[TRIPLE]) if TRIPLE in options else host_arch()
        if arch not in LEVELS:
            return mcpu, {TRIPLE: arch}, Features()
        return mcpu, {TRIPLE: arch}, _of_levels(LEVELS.get(arch))
    if TRIPLE in options:
        raise OptionError(
            f"target c: option {TRIPLE} requires -mcpu={AUTO}, got {TRIPLE}={options[TRIPLE][:80]}",
            next_step="Name the processor with -mcpu, or compile with llvm",
        )
    name = abilities.native_cpu() if mcpu == "native" else mcpu
    if mcpu == "native" and (found := abilities.native_products()) and ATTRIBUTES not in options:
        options = {**options, ATTRIBUTES: f"+{found}"}
    if ATTRIBUTES in options and not (name.startswith("x86-64") and set(options[ATTRIBUTES].split(",")) <= _PRODUCTS):
        raise OptionError(
            f"target c: option {ATTRIBUTES} requires an x86-64 processor and a value {' or '.join(sorted(_PRODUCTS))}"
            f"; got {ATTRIBUTES}={options[ATTRIBUTES][:80]} for {name}",
            next_step="Leave it out, or compile with llvm",
        )
    return name, options, CPUS.get(name).features


def _of_levels(levels: Levels, seen: Callable[[Features], Features] = lambda features: features) -> Features:
    """Return the features of the first level with those of the higher levels, each mapped by `seen`."""
    first, *higher = levels.levels
    return replace(seen(first.features), levels=tuple((level.name, seen(level.features)) for level in higher))


def _library_arch(triple: str) -> str:
    """Return the architecture of a triple, or of its first word; raise OptionError if it cannot load libraries."""
    if (arch := arch_named(triple)) is not None:
        return arch
    if triple == host_arch():
        return triple
    try:
        return parse_platform(triple).arch
    except OptionError as error:
        raise OptionError(
            f"-mcpu={AUTO} chooses among kernels when an operating system loads a library, got the machine "
            f"'{triple[:80]}'",
            place=TRIPLE,
            next_step='Name the core of a microcontroller: "c -mcpu=cortex-m4". Or a machine such as aarch64-linux-gnu',
        ) from error


def _read_llvm(mcpu: str, options: dict[str, str]) -> tuple[str, dict[str, str], Features]:
    from mlfc.target.llvm import GENERIC, in_llvm, read_llvm  # LLVM is slow to load

    if mcpu != AUTO:
        return read_llvm(mcpu, options)
    own = next((option for option in options if option != TRIPLE), None)
    if own is not None:
        raise OptionError(
            f"-mcpu={AUTO} is for several processors, and {own} for one, got {own}={options[own][:80]}",
            place=own,
            next_step='Leave it out, or name the processor: "llvm -mcpu=x86-64-v3"',
        )
    _, options, features = read_llvm(GENERIC, options)
    arch = _library_arch(options[TRIPLE])
    return AUTO, options, _of_levels(LEVELS.get(arch), in_llvm) if arch in LEVELS else features


def _read_device(
    kind: str, features: Features, mcpu: str, options: dict[str, str]
) -> tuple[str, dict[str, str], Features]:
    """Reduce the limits of kernels to those in the options of the device."""
    if mcpu != "generic":
        raise OptionError(
            f"target {kind} is a device and does not support -mcpu, got '{mcpu}'",
            next_step=f'Set the processor in the host target: "c -mcpu={mcpu}"',
        )
    most_items = _at_least(options, MOST_ITEMS, _FEWEST_ITEMS, features.group_items)
    found = replace(
        features,
        # group reductions are trees, which require a power of two
        group_items=1 << most_items.bit_length() - 1,
        shared_bytes=_at_least(options, MOST_SHARED, _LEAST_SHARED, features.shared_bytes),
    )
    return mcpu, options, found


def _at_least(options: Mapping[str, str], option: str, least: int, usual: int) -> int:
    """Return the number in an option, at most `usual`; raise OptionError below `least`."""
    text = options.get(option, str(usual))
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= least):
        raise OptionError(f"expected a number of at least {least}, got {option}={text}")
    return min(usual, int(text[:9]))


KINDS: Registry[TargetKind] = Registry("target kind")
KINDS.add("c", TargetKind("c", (TRIPLE, ATTRIBUTES, WINOGRAD), read=_read_c))
KINDS.add("llvm", TargetKind("llvm", (*LLVM_OPTIONS, WINOGRAD), read=_read_llvm))


def add_device_kind(name: str, features: Features, *options: str) -> None:
    """Add a kind of device, named as in `runtime.Device`, with options in addition to those of all devices."""
    KINDS.add(name, TargetKind(name, (*options, MOST_ITEMS, MOST_SHARED), name, partial(_read_device, name, features)))


def device_kinds() -> list[str]:
    """Return the kinds of devices that code can be compiled for."""
    return [name for name in KINDS if KINDS.get(name).device]


add_device_kind("opencl", Features(vector_bytes=0, dot4=False, gpu=True))
add_device_kind("cuda", Features(vector_bytes=0, gpu=True), "-arch")


@dataclass(frozen=True)
class Target:
    """The platform that code is generated for."""

    kind: str  # a key of KINDS, which selects the code generator
    # a key of CPUS; parsing resolves ``native``, so that archives do not depend on the machine that reads them
    mcpu: str
    features: Features  # of the processor
    # the other options: ``{"-mtriple": "aarch64-linux-gnu"}``
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [] if self.mcpu == "generic" else [f"-mcpu={self.mcpu}"]
        return " ".join([self.kind, *words, *(f"{key}={value}" for key, value in sorted(self.options.items()))])

    @property
    def device(self) -> str | None:
        """The kind of device that runs the code; None for host code."""
        return KINDS.get(self.kind).device

    @property
    def library_cpu(self) -> str:
        """The processor of a library, with additional instruction sets: ``x86-64-v4+avx512vnni``."""
        products = self.options.get(ATTRIBUTES, "") if self.kind == "c" else ""
        return self.mcpu + products.replace(",", "")

    @property
    def library_arch(self) -> str:
        """The architecture of a library that chooses among CPU levels."""
        return _library_arch(self.options[TRIPLE])

    @property
    def levels(self) -> Levels | None:
        """The CPU levels with separate kernels; None if the target has only one."""
        return LEVELS.get(self.library_arch) if self.features.levels else None

    def at_level(self, name: str | None) -> Target:
        """Return the target for one CPU level; None for all processors. With LLVM it may be that of a lower level."""
        levels = self.levels.levels if self.levels else ()
        names = [level.name for level in levels]
        known = levels[: names.index(name) + 1] if name in names else ()
        options = dict(self.options)
        if self.kind == "c":
            del options[TRIPLE]
            mcpu = known[-1].name if known else "generic"
        else:
            mcpu, own = next((level.llvm for level in reversed(known) if level.llvm), ("generic", ""))
            options |= {ATTRIBUTES: own} if own else {}
        return parse_target(str(replace(self, mcpu=mcpu, options=options)), self.features.optimize)


def parse_target(text: str, optimize: str = "speed") -> Target:
    """Return the target that a string names.

    Parameters
    ----------
    text : str
        A kind of KINDS, ``-mcpu=NAME``, ``-mcpu=native``, ``-mcpu=auto`` for several CPU levels, and the kind's own
        options. TVM's options ``-keys``, ``-model``, ``-march`` and ``-device`` are accepted and ignored. A processor
        in place of the kind is equivalent to C code for it: ``cortex-m4``.
    optimize : str
        ``speed`` or ``size``.

    Raises
    ------
    OptionError
        For an unknown kind, cpu or option; the message lists the known ones.
    """
    if not isinstance(text, str):
        raise OptionError(
            f"expected a target string, got {type(text).__name__}",
            next_step="The order is build(module, target, params): build(module, 'c', params)",
        )
    if optimize not in ("speed", "size"):
        raise OptionError(unknown("optimization goal", optimize, ("speed", "size")))
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"invalid target '{text}': {error}") from None
    if words and words[0] in CPUS and words[0] not in KINDS:  # a processor alone means C code for it
        words[:1] = ["c", f"-mcpu={words[0]}"]
    kind, mcpu, options = KINDS.get(words[0] if words else ""), "generic", {}
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "-mcpu":
            mcpu = value
        elif key in kind.options:
            options[key] = value
        elif key not in _SILENT:
            processors = () if kind.device else ("-mcpu",)
            known = ", ".join(f"{name}=..." for name in (*processors, *kind.options))
            raise OptionError(f"unknown target option '{word}'", next_step=f"Known: {known}")
    transforms = options.pop(WINOGRAD, "auto")
    if transforms not in ("auto", "off"):
        raise OptionError(unknown(f"value of {WINOGRAD}", transforms, ("auto", "off")))
    if kind.read is not None:
        mcpu, options, features = kind.read(mcpu, options)
    else:
        features = CPUS.get(mcpu).features
    if transforms == "off":
        features, options = abilities.without_transforms(features), {**options, WINOGRAD: transforms}
    if optimize == "size":  # levels increase the size
        features = replace(features, levels=(), packing_registers=0, compact=False)
    levels = tuple((name, replace(each, optimize=optimize)) for name, each in features.levels)
    return Target(kind.name, mcpu, replace(features, optimize=optimize, levels=levels), options)


def llvm_here(target: Target) -> str:
    """Return the ``llvm`` target with the kernels that `target` uses in this process.

    With several CPU levels, this is the level that a library would choose when it is loaded.
    """
    if target.mcpu != AUTO:
        return str(target).replace("c", "llvm", 1) if target.kind == "c" else str(target)
    known = levels_of_host() if target.library_arch == host_arch() else None
    words = ["llvm"]
    if known is not None:  # code for size has only the first level
        level = level_here(known)[0] if target.levels else known.levels[0]
        words += [f"-mcpu={level.name}"] if level.name in CPUS else []
    return " ".join([*words, *(f"{key}={value}" for key, value in target.options.items() if key == WINOGRAD)])


def parse_host(text: str, optimize: str = "speed") -> Target:
    """Return the host target of a device's program, as `parse_target` does; raise OptionError for a device."""
    host = parse_target(text, optimize)
    if host.device:
        raise OptionError(
            f"expected a host target, got the device '{text}'", next_step="Use c, 'c -mcpu=NAME', or llvm"
        )
    return host


def this_processor() -> str:
    """Return the target for code that only runs on this machine: the kernels of `EVERY_CPU` for it, compiled faster.

    The target has the processor's level, or the one in the environment variable `support.c_names.LEVEL_VARIABLE`.
    Raises OptionError for a level that is unknown, or that the processor lacks.
    """
    levels = levels_of_host()
    if levels is None or not levels.is_native:
        return EVERY_CPU  # a library uses kernels of several levels at once
    level, is_native = level_here(levels)
    named = f"{PORTABLE} -mcpu={level.name}"
    native = parse_target(f"{PORTABLE} -mcpu=native")
    return str(native) if is_native and native.mcpu == level.name else named
