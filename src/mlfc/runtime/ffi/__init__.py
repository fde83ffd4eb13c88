"""Calling functions of native code: packed functions of TVM and functions of tvm-ffi."""
