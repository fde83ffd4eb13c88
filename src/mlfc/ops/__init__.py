"""The operators, each module a family of them. Importing this package registers the kernel templates that they call."""

from __future__ import annotations

from importlib import import_module

_TEMPLATES = (
    "plain", "conv_templates", "winograd", "depthwise", "product_tile", "transposed_columns", "transposed_tile",
    "gpu_fold", "gpu_product", "gpu_transposed", "packed_tile", "gpu_depthwise", "attention", "attention_tile",
    "attention_rows",
)  # fmt: skip
for _name in _TEMPLATES:
    import_module(f"mlfc.kernels.{_name}")
