"""Cortex-M cores without extensions that kernels use."""

from __future__ import annotations

from mlfc.target.features import CPUS, PLAIN, Cpu

for _name in ("cortex-m0", "cortex-m0plus", "cortex-m1"):
    CPUS.add(_name, Cpu(PLAIN, "thumbv6m"))
CPUS.add("cortex-m3", Cpu(PLAIN, "thumbv7m", ("thumbv6m",)))
CPUS.add("cortex-m23", Cpu(PLAIN, "thumbv8m.base", ("thumbv6m",)))
