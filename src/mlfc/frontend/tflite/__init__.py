"""Import of TFLite models into Relay."""

from mlfc.frontend.tflite.importer import import_tflite

__all__ = ["import_tflite"]
