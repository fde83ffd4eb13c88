"""Kernel templates for MVE."""

from __future__ import annotations

from functools import partial

from mlfc.isa.mve import convolution, halves  # noqa: F401  (they register themselves)
from mlfc.kernels.templates import FITTING
from mlfc.tir.fixed_point_lanes import QUARTET, vectorize

FITTING.add("mve", partial(vectorize, forms=QUARTET))
