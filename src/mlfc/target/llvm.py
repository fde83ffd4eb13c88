"""Targets of the kind ``llvm``: triple, processor and features, resolved by LLVM itself."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm

from mlfc.errors import OptionError, unknown
from mlfc.support.platforms import parse_platform
from mlfc.target.features import CPUS, INSTRUCTION_SETS, LLVM_OPTIONS, PLAIN, Features, leading, native_cpu

TRIPLE, ATTRIBUTES, FLOAT_ABI, ABI = LLVM_OPTIONS
GENERIC = "generic"

_TRIPLE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,79}")
_ATTRIBUTES = re.compile(r"[+-][A-Za-z0-9_.-]+(,[+-][A-Za-z0-9_.-]+)*")
_FLOAT_ABIS = {"soft": "eabi", "softfp": "eabi", "hard": "eabihf"}
_RV32 = "riscv32-unknown-elf"
# LLVM's names of processors that differ from mlfc's, by the first word of the triple
_NAMES = {("x86_64", GENERIC): "x86-64", ("riscv32", GENERIC): "generic-rv32", ("riscv64", GENERIC): "generic-rv64"}
# features of generic processors that every system with them has
_PLAIN = {"riscv32": "+m,+a,+c", "riscv64": "+m,+a,+f,+d,+c"}
# byte dot products, which are optional within a level
_DOT_PRODUCTS = ("avx512vnni", "avxvnni")
_LIST = """\
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
llvm.Target.from_triple(sys.argv[1]).create_target_machine(cpu="help")
"""


@cache
def _initialize() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def find_target(triple: str) -> llvm.Target:
    """Return LLVM's target of a triple; raise OptionError if LLVM does not support it."""
    _initialize()
    try:
        if not _TRIPLE.fullmatch(triple):
            raise RuntimeError
        return llvm.Target.from_triple(triple)
    except RuntimeError:
        raise OptionError(
            f"unknown LLVM triple '{triple[:80]}'",
            place=TRIPLE,
            next_step="Use one such as x86_64-linux-gnu, aarch64-linux-gnu, thumbv7em-none-eabi, riscv32-unknown-elf "
            "or wasm32-unknown-unknown",
        ) from None


def host_triple() -> str:
    """Return the triple of this process."""
    return str(llvm.get_process_triple())


def architecture(triple: str) -> str:
    """Return the normalized first word of a triple: ``x86_64``, ``aarch64``, ``thumbv7em``, ..."""
    word = triple.partition("-")[0]
    return {"amd64": "x86_64", "arm64": "aarch64"}.get(word, word)


def llvm_cpu(triple: str, mcpu: str) -> str:
    """Return LLVM's name of a target's processor."""
    return _NAMES.get((architecture(triple), mcpu), mcpu)


def llvm_features(triple: str, mcpu: str, attributes: str = "") -> str:
    """Return the features in addition to the processor's own, in LLVM's form: ``+m,+a,-c``."""
    plain = _PLAIN.get(architecture(triple), "") if mcpu in (GENERIC, "generic-rv32") else ""
    return ",".join(filter(None, (plain, attributes)))


def read_llvm(mcpu: str, options: dict[str, str]) -> tuple[str, dict[str, str], Features]:
    """Return the processor, completed options and features of a target.

    `mcpu` is mlfc's name or LLVM's, ``generic`` or ``native``.

    Raises
    ------
    OptionError
        For an unknown triple, processor, feature or float ABI.
    """
    options = dict(options)
    if mcpu == "native":
        mcpu, found = _native()
        _prepend(options, found)
    options[TRIPLE] = _triple(mcpu, options)
    triple = options[TRIPLE]
    find_target(triple)
    if mcpu in CPUS and (features := CPUS.get(mcpu).llvm) is not None and architecture(triple) == "aarch64":
        mcpu = GENERIC
        _prepend(options, features)
    if ATTRIBUTES in options and not _ATTRIBUTES.fullmatch(options[ATTRIBUTES]):
        raise OptionError(
            f"expected features such as +avx2,-fma, got '{options[ATTRIBUTES][:80]}'",
            place=ATTRIBUTES,
            next_step="Write + or - before each feature, and commas between them",
        )
    # reading LLVM's lists takes a tenth of a small model's compilation, so names for this machine are not looked up
    name, given, is_x86 = llvm_cpu(triple, mcpu), options.get(ATTRIBUTES), architecture(triple) == "x86_64"
    if mcpu != GENERIC and not (triple == host_triple() and mcpu in (native_cpu(), _native()[0])):
        _check_known(name, _known(triple)[0], "-mcpu", "LLVM processor", triple)
    for part in given.split(",") if given else ():
        if not (is_x86 and part[1:] in _DOT_PRODUCTS):
            _check_known(part[1:], _known(triple)[1], ATTRIBUTES, "LLVM feature", triple)
    return mcpu, options, _features(triple, mcpu, options.get(ATTRIBUTES, ""))


def _prepend(options: dict[str, str], features: str) -> None:
    if given := ",".join(filter(None, (features, options.get(ATTRIBUTES, "")))):
        options[ATTRIBUTES] = given


def _native() -> tuple[str, str]:
    """Return the processor of this machine, and its features beyond its level."""
    arch = architecture(host_triple())
    if arch != "x86_64":
        name = str(llvm.get_host_cpu_name())
        return native_cpu() if (name, arch) == (GENERIC, "aarch64") else name, ""
    has = llvm.get_host_cpu_features()
    cpu = native_cpu()
    return CPUS.get(cpu).base or cpu, ",".join(f"+{name}" for name in _DOT_PRODUCTS if has.get(name))


def _triple(mcpu: str, options: dict[str, str]) -> str:
    chosen = options.get(FLOAT_ABI)
    if chosen is not None and chosen not in _FLOAT_ABIS:
        raise OptionError(unknown("float ABI", chosen, _FLOAT_ABIS), place=FLOAT_ABI)
    given = options.get(TRIPLE)
    if given is None and mcpu in CPUS and (word := CPUS.get(mcpu).architecture):
        return f"{word}-none-{_FLOAT_ABIS[chosen or 'softfp']}"
    if given is None:
        return _RV32 if mcpu == "generic-rv32" else host_triple()
    if chosen is not None and given.endswith(("eabi", "eabihf")):
        return f"{given.removesuffix('hf').removesuffix('eabi')}{_FLOAT_ABIS[chosen]}"
    # for other forms of Windows and macOS triples, LLVM would emit ELF objects
    try:
        machine = parse_platform(given)
    except OptionError:  # a machine without a system
        return given
    return given if machine.system == "linux" else machine.llvm_triple


def _check_known(name: str, known: tuple[str, ...], place: str, what: str, triple: str) -> None:
    if known and name not in known:
        cause = unknown(what, name, known, where=f" for {architecture(triple)}")
        hint = None if "nearest" in cause else f"Known: {', '.join(known[:12])}, ..."
        raise OptionError(cause, place=place, next_step=hint)


@cache
def _known(triple: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the processors of a triple and the features that they may have.

    LLVM writes the lists to standard error, so they are read from a subprocess. If that fails, they are empty, and
    nothing is checked.
    """
    try:
        result = subprocess.run(
            [sys.executable, "-c", _LIST, triple], capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return (), ()
    cpus, _, attributes = result.stderr.partition("Available features")
    found = [re.findall(r"^\s+(\S+)\s+- ", part, re.MULTILINE) for part in (cpus, attributes)]
    return tuple(sorted(found[0])), tuple(sorted(found[1]))


def _features(triple: str, mcpu: str, attributes: str) -> Features:
    """Return the features of a processor."""
    if mcpu in CPUS and mcpu != GENERIC:
        return in_llvm(CPUS.get(mcpu).features)
    arch = architecture(triple)
    small = arch in ("riscv32", "avr", "msp430") or arch.startswith("thumbv")
    found, last = find_instructions(triple, mcpu, attributes), "plain" if small else "vector"
    names = leading(name for name in found if INSTRUCTION_SETS.get(name).before == last)
    if small:
        return replace(PLAIN, instruction_sets=names)
    wide = arch in ("x86_64", "i386", "i686") and "zmm" in _assembly(triple, mcpu, attributes, _WIDE)
    return Features(vector_registers=32 if wide else 16, instruction_sets=names)


def in_llvm(features: Features) -> Features:
    """Return features without the instruction sets that the LLVM backend does not support.

    Compact templates are disabled, because LLVM unrolls their loops, which makes them larger than the others.
    """
    known = tuple(name for name in features.instruction_sets if INSTRUCTION_SETS.get(name).in_llvm)
    return replace(features, instruction_sets=known, compact=False)


def find_instructions(triple: str, mcpu: str, attributes: str) -> dict[str, str]:
    """Return the instruction sets that a processor supports, each with an instruction that proves it.

    LLVM compiles a probe for each family, so no second table of processors and features has to follow LLVM's.
    """
    found = {}
    for name in INSTRUCTION_SETS:
        entry = INSTRUCTION_SETS.get(name)
        if entry.in_llvm and re.match(entry.machines, architecture(triple)):
            match = re.search(entry.shows, _assembly(triple, mcpu, attributes, entry.probe))
            if match is not None or (entry.attribute and f"+{entry.attribute}" in attributes.split(",")):
                found[name] = match[0] if match else entry.attribute
    return found


_WIDE = """
define <16 x float> @lanes(<16 x float> %a) "min-legal-vector-width"="512" {
  %result = fadd <16 x float> %a, %a
  ret <16 x float> %result
}
"""


@cache
def _assembly(triple: str, mcpu: str, attributes: str, text: str) -> str:
    machine = find_target(triple).create_target_machine(
        cpu=llvm_cpu(triple, mcpu), features=llvm_features(triple, mcpu, attributes), codemodel="default"
    )
    module = llvm.parse_assembly(f'target triple = "{triple}"\n{text}')
    return str(machine.emit_assembly(module))
