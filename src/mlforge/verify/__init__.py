"""Compares compiled models with reference implementations, layer by layer where asked."""

from mlforge.verify.compare import Comparison, verify
from mlforge.verify.difference import Difference
from mlforge.verify.layers import with_all_tensors

__all__ = ["Comparison", "Difference", "verify", "with_all_tensors"]
