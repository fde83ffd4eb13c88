"""Calls of native functions: packed functions of TVM and functions of tvm-ffi."""
