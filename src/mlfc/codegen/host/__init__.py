"""The host's part around kernels: the graph that executors read, and the functions that call kernels."""
