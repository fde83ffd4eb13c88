"""Compares compiled models with reference implementations, layer by layer where asked."""

from mlfc.verify.accuracy import Accuracy
from mlfc.verify.compare import Comparison, verify
from mlfc.verify.difference import Difference, Evidence, Tolerance
from mlfc.verify.reference import with_all_tensors

__all__ = ["Accuracy", "Comparison", "Difference", "Evidence", "Tolerance", "verify", "with_all_tensors"]
