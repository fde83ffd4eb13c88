"""AVR microcontrollers, whose doubles have 32 bits."""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import CPUS, PLAIN, Cpu

CPUS.add("avr", Cpu(replace(PLAIN, wide_double=False)))
