"""The operators. Importing this package registers all of them, and the kernel templates that they call."""

from __future__ import annotations

from importlib import import_module

_FAMILIES = (
    "elementwise", "arithmetic", "reduce", "views", "shape", "indexing", "creation", "lists", "draws", "nn",
    "normalization",
    "pool", "qnn", "qnn_arithmetic", "qnn_unary", "qnn_image", "qnn_reduce", "image", "conv", "dense",
    "qnn_linear", "external", "trees", "ngrams", "sorting", "coupling", "recurrent",
    "qnn_recurrent", "dynamic_recurrent", "svdf", "sampling", "detection", "regions", "linalg",
    "qnn_normal", "fft", "signal", "attention",
    "weight_only",
)  # fmt: skip
_TEMPLATES = (
    "plain", "conv_templates", "winograd", "depthwise", "product_tile", "transposed_columns", "transposed_tile",
    "gpu_fold", "gpu_product", "gpu_transposed", "packed_tile", "gpu_depthwise", "attention", "attention_tile",
    "attention_rows",
)  # fmt: skip
for _name in (*(f"ops.{name}" for name in _FAMILIES), *(f"kernels.{name}" for name in _TEMPLATES)):
    import_module(f"mlfc.{_name}")
