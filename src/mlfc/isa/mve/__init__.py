"""ARM's vector extension for microcontrollers (MVE, Helium): blocks of bytes, and vectors of four int32."""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import CPUS, INSTRUCTION_SETS, PLAIN, Cpu, InstructionSet

_PROBE = """
define <4 x i32> @lanes(<4 x i32> %a, <4 x i32> %b) {
  %result = add <4 x i32> %a, %b
  ret <4 x i32> %result
}
"""
INSTRUCTION_SETS.add(
    "mve",
    InstructionSet(
        "mve",
        "thumb",
        _PROBE,
        r"\bvadd\.i32\s+q",
        replaces=("dsp",),
        before="plain",
        intrinsics=frozenset({"requantize_away"}),  # an instruction in 32-bit lanes
        title="MVE",
        elf_attribute=48,
    ),
)
_OLDER = ("thumbv6m", "thumbv7m", "thumbv7em", "thumbv8m.base", "thumbv8m.main")
for _name in ("cortex-m52", "cortex-m55", "cortex-m85"):
    CPUS.add(_name, Cpu(replace(PLAIN, instruction_sets=("mve",), float_unit=True), "thumbv8.1m.main", _OLDER))
