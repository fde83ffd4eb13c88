"""Target strings: a kind and options, as TVM writes them: ``c -mcpu=cortex-m4``."""

from __future__ import annotations

import platform
import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from mlforge.errors import OptionError
from mlforge.registry import Registry
from mlforge.target.features import Features

CPUS: Registry[Features] = Registry("cpu")
KINDS = ("c",)

_PLAIN = Features(vector_bytes=0, vector_registers=0, dot4=False)
for _name in ("cortex-m0", "cortex-m0plus", "cortex-m3", "cortex-m23"):
    CPUS.add(_name, _PLAIN)
for _name in ("cortex-m4", "cortex-m7", "cortex-m33"):
    CPUS.add(_name, replace(_PLAIN, dsp=True))
for _name in ("cortex-m55", "cortex-m85"):
    CPUS.add(_name, replace(_PLAIN, mve=True))
for _name in ("generic-rv32", "avr"):
    CPUS.add(_name, _PLAIN)
CPUS.add("generic", Features())
CPUS.add("x86-64", Features())
CPUS.add("x86-64-v2", Features())
CPUS.add("x86-64-v3", Features())
CPUS.add("x86-64-v4", Features(vector_registers=32))
for _name in ("cortex-a53", "cortex-a72", "cortex-a76", "neoverse-n1", "apple-m1"):
    CPUS.add(_name, Features())


@dataclass(frozen=True)
class Target:
    """What code is made for.

    Attributes
    ----------
    kind : str
        The printer: ``c``.
    mcpu : str
        A key of CPUS. ``native`` in a target string is resolved to one when it is parsed, so that
        what an archive says does not depend on where it is read.
    features : Features
    """

    kind: str
    mcpu: str
    features: Features

    def __str__(self) -> str:
        return self.kind if self.mcpu == "generic" else f"{self.kind} -mcpu={self.mcpu}"


def parse_target(text: str, optimize: str = "speed") -> Target:
    """Return the target that a string names.

    Parameters
    ----------
    text : str
        ``c``, ``c -mcpu=NAME`` or ``c -mcpu=native``; other options of TVM's (``-keys``, ``-model``,
        ``-march``) are accepted and say nothing to the compiler.
    optimize : str
        ``speed`` or ``size``.

    Raises
    ------
    OptionError
        For an unknown kind, cpu or option; the message lists what there is.
    """
    if optimize not in ("speed", "size"):
        raise OptionError(f"there is no optimization goal '{optimize}'", next_step="Use speed or size")
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"the target '{text}' cannot be read: {error}") from None
    if not words or words[0] not in KINDS:
        raise OptionError(
            f"there is no target kind '{words[0] if words else ''}'", next_step=f"Kinds: {', '.join(KINDS)}"
        )
    mcpu = "generic"
    for word in words[1:]:
        key, _, value = word.partition("=")
        if key == "-mcpu":
            mcpu = native_cpu() if value == "native" else value
        elif key not in ("-keys", "-model", "-march", "-device"):
            raise OptionError(f"the target has no option '{word}'", next_step="It has -mcpu=NAME")
    return Target(words[0], mcpu, replace(CPUS.get(mcpu), optimize=optimize))


def native_cpu() -> str:
    """Return the key of CPUS that fits the machine this runs on."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return "generic"
    try:
        flags = next(
            line for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if line.startswith("flags")
        ).split()
    except (OSError, StopIteration):
        return "generic"
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= set(flags):
        return "x86-64-v4"
    return "x86-64-v3" if "avx2" in flags else "x86-64"
