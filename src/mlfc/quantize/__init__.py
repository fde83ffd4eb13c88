"""Post-training quantization of ONNX models: calibration data in, a model of int8 and its differences out."""
