"""Tokens → vectors and keys: a model folder run with ONNX Runtime, without torch."""
