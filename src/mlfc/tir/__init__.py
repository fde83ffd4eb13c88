"""The loop-level IR: its nodes, builder, verifier and meaning."""

import mlfc.tir.builder  # noqa: F401  (gives expressions their operators)
