"""The TFLite importer."""

from mlforge.frontend.tflite.importer import import_tflite

__all__ = ["import_tflite"]
