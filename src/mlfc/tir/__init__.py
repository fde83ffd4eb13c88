"""The loop-level IR: its nodes, builder, verifier and meaning."""
