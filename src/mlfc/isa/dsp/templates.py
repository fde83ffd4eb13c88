"""How kernels are written with it."""

from __future__ import annotations

from mlfc.isa.dsp import convolution, depthwise  # noqa: F401  (they register themselves)
from mlfc.isa.dsp.narrow import narrow
from mlfc.kernels.templates import FITTING

FITTING.add("dsp", narrow)
