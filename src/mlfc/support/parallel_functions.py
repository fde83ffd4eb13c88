"""Names of the functions of `crt/parallel` with which kernels split their work among threads."""

from collections.abc import Mapping

PARALLEL_FOR = "mlfc_parallel_for"
"""Distributes pieces among threads."""
PARALLEL_FOR_IF_ASKED = "mlfc_parallel_for_if_asked"
"""The same, but runs all pieces on the caller's thread unless the program enabled threads."""
HEADERS: Mapping[str, str] = {PARALLEL_FOR: "mlfc_parallel.h", PARALLEL_FOR_IF_ASKED: "mlfc_pool.h"}
"""The header that declares each function."""
SOURCE = "mlfc_parallel_for.c"
"""The application's definition of the first; libraries for hosts use a thread pool instead."""
