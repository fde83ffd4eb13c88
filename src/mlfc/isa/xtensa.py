"""Xtensa cores, without kernels for their vector instructions."""

from __future__ import annotations

from dataclasses import replace

from mlfc.target.features import CPUS, PLAIN, Cpu

CPUS.add("esp32s3", Cpu(replace(PLAIN, float_unit=True)))
