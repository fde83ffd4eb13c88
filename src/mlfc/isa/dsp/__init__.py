"""The DSP extension of ARM's microcontrollers: arithmetic on pairs of 16-bit numbers in a word."""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import CPUS, INSTRUCTION_SETS, PLAIN, Cpu, InstructionSet

_PROBE = """
define i32 @products(i32 %sum, i16 signext %a, i16 signext %b) {
  %wide_a = sext i16 %a to i32
  %wide_b = sext i16 %b to i32
  %product = mul i32 %wide_a, %wide_b
  %result = add i32 %sum, %product
  ret i32 %result
}
"""
INSTRUCTION_SETS.add("dsp", InstructionSet("dsp", "thumb|arm", _PROBE, "smlabb", before="plain", title="DSP"))

_FEATURES = replace(PLAIN, instruction_sets=("dsp",), float_unit=True)
for _name in ("cortex-m4", "cortex-m7"):
    CPUS.add(_name, Cpu(_FEATURES, "thumbv7em", ("thumbv6m", "thumbv7m")))
for _name in ("cortex-m33", "cortex-m35p"):
    CPUS.add(_name, Cpu(_FEATURES, "thumbv8m.main", ("thumbv6m", "thumbv7m", "thumbv7em", "thumbv8m.base")))
