"""The operators. Importing this package registers all of them, and the kernel templates that they call."""

from __future__ import annotations

from importlib import import_module

for _family in (
    "elementwise",
    "arithmetic",
    "reduce",
    "views",
    "shape",
    "indexing",
    "creation",
    "nn",
    "normalization",
    "pool",
    "qnn",
    "qnn_arithmetic",
    "qnn_dynamic",
    "qnn_unary",
    "qnn_image",
    "qnn_reduce",
    "image",
    "conv",
    "dense",
    "qnn_linear",
    "external",
):
    import_module(f"mlfc.ops.{_family}")
for _templates in (
    "plain",
    "conv_tile",
    "depthwise",
    "product_tile",
    "gpu_fold",
    "gpu_product",
    "gpu_transposed",
    "gpu_depthwise",
):
    import_module(f"mlfc.kernels.{_templates}")
