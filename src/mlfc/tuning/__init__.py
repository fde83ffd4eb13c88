"""Searching the parameters of kernels by measuring."""
