"""How kernels are written with it."""

from __future__ import annotations

from mlfc.isa.mve import convolution, depthwise, halves  # noqa: F401  (they register themselves)
from mlfc.isa.mve.vectorize import vectorize
from mlfc.kernels.templates import FITTING

FITTING.add("mve", vectorize)
