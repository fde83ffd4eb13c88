"""The families of ONNX operators; importing them fills the table."""

from __future__ import annotations

from importlib import import_module

_FAMILIES = (
    "activation",
    "constant",
    "conv",
    "elementwise",
    "image",
    "index",
    "linear",
    "microsoft",
    "ml",
    "normalization",
    "pool",
    "quantized",
    "reduce",
    "shape",
)


def load() -> None:
    """Register the importers of all families, and the operators that they make."""
    import_module("mlfc.ops")
    for family in _FAMILIES:
        import_module(f"mlfc.frontend.onnx.{family}")
