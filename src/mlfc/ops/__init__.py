"""The operators, one module per family. Importing this package registers the kernel templates that they call."""

from __future__ import annotations

from importlib import import_module

_TEMPLATES = (
    "plain", "compact_tile", "winograd", "depthwise", "product_tile", "transposed", "gpu_fold", "gpu_product",
    "packed_tile", "attention", "attention_tile",
)  # fmt: skip
for _name in _TEMPLATES:
    import_module(f"mlfc.kernels.{_name}")
