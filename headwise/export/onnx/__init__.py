"""Graphs as ONNX files: written, compared with PyTorch in ONNX Runtime, and run there."""
