"""Import of serialized ONNX models into Relay."""

from mlfc.frontend.onnx.importer import import_onnx

__all__ = ["import_onnx"]
