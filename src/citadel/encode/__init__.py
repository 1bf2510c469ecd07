"""Encode text to vectors and keys with an exported model and ONNX Runtime, without torch."""
