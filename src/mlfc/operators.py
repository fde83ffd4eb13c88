"""Declaration of operators for ONNX nodes that mlfc does not support; ``--op FILE.py`` runs files that declare them."""

from __future__ import annotations

from mlfc.byoc.c_source import CSource
from mlfc.frontend.onnx.custom import declare
from mlfc.relay.ir import TensorType

__all__ = ["CSource", "TensorType", "declare"]
