"""Target strings: a kind and options, as TVM writes them: ``c -mcpu=cortex-m4``, ``llvm -mtriple=...``."""

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

# options of TVM's that the compiler ignores
_SILENT = ("-keys", "-model", "-march", "-device")

MOST_ITEMS, MOST_SHARED = "-max_num_threads", "-max_shared_memory_per_block"
"""Options of devices: most work-items of a group, and most bytes that they have together; kernels take no more."""
# products of bytes; old compilers lack the second, so -mcpu=native leaves it to them
_PRODUCTS = {"+avx512vnni", "+avxvnni"}
# the least that templates need
_FEWEST_ITEMS, _LEAST_SHARED = 32, 4096


@dataclass(frozen=True)
class TargetKind:
    """A printer's kind of target."""

    name: str
    options: tuple[str, ...] = ()  # what a target string may have beside ``-mcpu``, each with one value: ``-mtriple``
    # the kind of device whose code it is, in `runtime.Device`'s words; None for code of a host
    device: str | None = None
    # completes processor and options and returns them with their features, where that takes more than CPUS
    read: Callable[[str, dict[str, str]], tuple[str, dict[str, str], Features]] | None = None


TRIPLE = "-mtriple"
"""The option for the machine: of ``-mcpu=auto``, for the architecture whose levels it has."""
ATTRIBUTES = "-mattr"
"""The option for instructions that processors of one level have or not; of ``c`` for those of x86."""

WINOGRAD = "-winograd"
"""The option for convolutions by transforms: ``auto``, where they are faster, or ``off``, which is usual."""


def _read_c(mcpu: str, options: dict[str, str]) -> tuple[str, dict[str, str], Features]:
    if mcpu == AUTO:
        arch = _library_arch(options[TRIPLE]) if TRIPLE in options else host_arch()
        if arch not in LEVELS:
            return mcpu, {TRIPLE: arch}, Features()
        return mcpu, {TRIPLE: arch}, _of_levels(LEVELS.get(arch))
    if TRIPLE in options:
        raise OptionError(
            f"target c has the option {TRIPLE} with -mcpu={AUTO} only, got {TRIPLE}={options[TRIPLE][:80]}",
            next_step="Name the processor with -mcpu, or compile with llvm",
        )
    name = abilities.native_cpu() if mcpu == "native" else mcpu
    if mcpu == "native" and (found := abilities.native_products()) and ATTRIBUTES not in options:
        options = {**options, ATTRIBUTES: f"+{found}"}
    if ATTRIBUTES in options and not (name.startswith("x86-64") and set(options[ATTRIBUTES].split(",")) <= _PRODUCTS):
        raise OptionError(
            f"target c has the option {ATTRIBUTES} for processors of x86-64 only, with {' or '.join(sorted(_PRODUCTS))}"
            f"; got {ATTRIBUTES}={options[ATTRIBUTES][:80]} for {name}",
            next_step="Leave it out, or compile with llvm",
        )
    return name, options, CPUS.get(name).features


def _of_levels(levels: Levels, seen: Callable[[Features], Features] = lambda features: features) -> Features:
    """Return the abilities of all levels, each as a printer sees it."""
    first, *higher = levels.levels
    return replace(seen(first.features), levels=tuple((level.name, seen(level.features)) for level in higher))


def _library_arch(triple: str) -> str:
    """Return the architecture of a triple, or of its first word; raise OptionError if it loads no libraries."""
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
    from mlfc.target.llvm import GENERIC, in_llvm, read_llvm  # LLVM takes long to load

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
    """Lower the limits of kernels to those that the options give the device."""
    if mcpu != "generic":
        raise OptionError(
            f"target {kind} is a device and has no option -mcpu, got '{mcpu}'",
            next_step=f'Give the processor in the host target: "c -mcpu={mcpu}"',
        )
    most_items = _at_least(options, MOST_ITEMS, _FEWEST_ITEMS, features.group_items)
    found = replace(
        features,
        # groups fold in trees
        group_items=1 << most_items.bit_length() - 1,
        shared_bytes=_at_least(options, MOST_SHARED, _LEAST_SHARED, features.shared_bytes),
    )
    return mcpu, options, found


def _at_least(options: Mapping[str, str], option: str, least: int, usual: int) -> int:
    """Return the number of an option, or `usual` if that is less."""
    text = options.get(option, str(usual))
    if not (text.isascii() and text.isdigit() and int(text[:9]) >= least):
        raise OptionError(f"expected a number of at least {least}, got {option}={text}")
    return min(usual, int(text[:9]))


KINDS: Registry[TargetKind] = Registry("target kind")
KINDS.add("c", TargetKind("c", (TRIPLE, ATTRIBUTES, WINOGRAD), read=_read_c))
KINDS.add("llvm", TargetKind("llvm", (*LLVM_OPTIONS, WINOGRAD), read=_read_llvm))


def add_device_kind(name: str, features: Features, *options: str) -> None:
    """Add a kind of device, named as in `runtime.Device`, with options of its own beside those of all devices."""
    KINDS.add(name, TargetKind(name, (*options, MOST_ITEMS, MOST_SHARED), name, partial(_read_device, name, features)))


def device_kinds() -> list[str]:
    """Return the kinds of devices that code can be compiled for."""
    return [name for name in KINDS if KINDS.get(name).device]


add_device_kind("opencl", Features(vector_bytes=0, dot4=False, gpu=True))
add_device_kind("cuda", Features(vector_bytes=0, gpu=True), "-arch")


@dataclass(frozen=True)
class Target:
    """What code is made for."""

    kind: str  # the printer: a key of KINDS
    # a key of CPUS; parsing resolves ``native`` to one, so that what archives say does not depend on their reader
    mcpu: str
    features: Features  # of the processor
    # what else the string has, by option: ``{"-mtriple": "aarch64-linux-gnu"}``
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        words = [] if self.mcpu == "generic" else [f"-mcpu={self.mcpu}"]
        return " ".join([self.kind, *words, *(f"{key}={value}" for key, value in sorted(self.options.items()))])

    @property
    def device(self) -> str | None:
        """The kind of device that runs the code beside a host; None for code of a host."""
        return KINDS.get(self.kind).device

    @property
    def library_cpu(self) -> str:
        """The processor of a library, with the instructions that it needs beside: ``x86-64-v4+avx512vnni``."""
        products = self.options.get(ATTRIBUTES, "") if self.kind == "c" else ""
        return self.mcpu + products.replace(",", "")

    @property
    def library_arch(self) -> str:
        """The architecture of a library that chooses among levels of processors."""
        return _library_arch(self.options[TRIPLE])

    @property
    def levels(self) -> Levels | None:
        """The levels of processors that have kernels of their own, if there are any."""
        return LEVELS.get(self.library_arch) if self.features.levels else None

    def at_level(self, name: str | None) -> Target:
        """Return the target for the processors of one level, of None for all; LLVM's code may be that of one below."""
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
        A kind of KINDS, ``-mcpu=NAME``, ``-mcpu=native``, ``-mcpu=auto`` for several levels of processors, and the
        kind's own options; other options of TVM's (``-keys``, ``-model``, ``-march``) are accepted and ignored. A
        processor in place of the kind is code in C for it: ``cortex-m4``.
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
    if words and words[0] in CPUS and words[0] not in KINDS:  # a processor alone is code in C for it
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
    if optimize == "size":  # levels are speed for bytes
        features = replace(features, levels=(), packing_registers=0, compact=False)
    levels = tuple((name, replace(each, optimize=optimize)) for name, each in features.levels)
    return Target(kind.name, mcpu, replace(features, optimize=optimize, levels=levels), options)


def llvm_here(target: Target) -> str:
    """Return the target whose kernels, made by LLVM, are those that a target of this machine has in this process.

    Of several levels of processors a library takes one when it is loaded; templates choose by what it has.
    """
    if target.mcpu != AUTO:
        return str(target).replace("c", "llvm", 1) if target.kind == "c" else str(target)
    known = levels_of_host() if target.library_arch == host_arch() else None
    words = ["llvm"]
    if known is not None:  # code for size has none but the first
        level = level_here(known)[0] if target.levels else known.levels[0]
        words += [f"-mcpu={level.name}"] if level.name in CPUS else []
    return " ".join([*words, *(f"{key}={value}" for key, value in target.options.items() if key == WINOGRAD)])


def parse_host(text: str, optimize: str = "speed") -> Target:
    """Return the target of the code beside a device's, as `parse_target` does."""
    host = parse_target(text, optimize)
    if host.device:
        raise OptionError(
            f"expected a host target, got the device '{text}'", next_step="Use c, 'c -mcpu=NAME', or llvm"
        )
    return host
