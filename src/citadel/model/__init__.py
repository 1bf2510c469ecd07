"""The torch model: backbone, heads, chunked router, training score, checkpoints and the ONNX export."""
