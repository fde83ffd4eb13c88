"""Host code around kernels: the graph that executors read, and the functions that call kernels."""
