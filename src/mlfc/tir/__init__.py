"""The loop-level IR: nodes, builder, verifier and interpreter."""

import mlfc.tir.builder  # noqa: F401  (gives expressions their operators)
