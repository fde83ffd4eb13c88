"""The functions of `crt/parallel` by which kernels share their work among threads, as code calls them."""

from collections.abc import Mapping

PARALLEL_FOR = "mlfc_parallel_for"
"""Shares pieces out among threads."""
PARALLEL_FOR_IF_ASKED = "mlfc_parallel_for_if_asked"
"""The same, which leaves them to the caller unless the program asked for threads."""
HEADERS: Mapping[str, str] = {PARALLEL_FOR: "mlfc_parallel.h", PARALLEL_FOR_IF_ASKED: "mlfc_pool.h"}
"""The header that declares each."""
SOURCE = "mlfc_parallel_for.c"
"""Defines the first as an application says; in libraries of hosts, a pool of threads takes its place."""
