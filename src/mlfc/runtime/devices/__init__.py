"""Kinds of devices and their drivers: the host, OpenCL, CUDA."""
