"""Post-training quantization of ONNX models to int8, with a comparison of both models."""
