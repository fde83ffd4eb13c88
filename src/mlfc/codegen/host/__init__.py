"""What is on the host around kernels: the graph that executors read, and the functions that call kernels."""
