"""The ONNX importer: `import_onnx` turns a serialized ONNX model into Relay."""

from mlfc.frontend.onnx.importer import import_onnx

__all__ = ["import_onnx"]
