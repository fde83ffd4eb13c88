"""The graph IR: its nodes, operators, text form, verifier and traversal."""
