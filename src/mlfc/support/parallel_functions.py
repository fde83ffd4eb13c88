"""The functions of `crt/parallel` by which kernels share their work among threads, as code calls them."""

PARALLEL_FOR = "mlfc_parallel_for"
"""Shares pieces out among threads."""
PARALLEL_FOR_IF_ASKED = "mlfc_parallel_for_if_asked"
"""The same, which leaves them to the caller unless the program asked for threads."""
