"""Comparison of compiled models with reference implementations. Names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mlfc.support.lazy import make_lazy

if TYPE_CHECKING:
    from mlfc.verify.compare import Comparison as Comparison
    from mlfc.verify.compare import verify as verify
    from mlfc.verify.difference import Accuracy as Accuracy
    from mlfc.verify.difference import Difference as Difference
    from mlfc.verify.difference import Evidence as Evidence
    from mlfc.verify.difference import Tolerance as Tolerance
    from mlfc.verify.reference import with_all_tensors as with_all_tensors

_HOMES = {
    "Accuracy": "mlfc.verify.difference",
    "Comparison": "mlfc.verify.compare",
    "Difference": "mlfc.verify.difference",
    "Evidence": "mlfc.verify.difference",
    "Tolerance": "mlfc.verify.difference",
    "verify": "mlfc.verify.compare",
    "with_all_tensors": "mlfc.verify.reference",
}

make_lazy(__name__)
