"""Compares compiled models with reference implementations, layer by layer where asked."""

from mlforge.verify.accuracy import Accuracy
from mlforge.verify.compare import Comparison, verify
from mlforge.verify.difference import Difference, Evidence, Tolerance
from mlforge.verify.layers import with_all_tensors

__all__ = ["Accuracy", "Comparison", "Difference", "Evidence", "Tolerance", "verify", "with_all_tensors"]
