"""Graphs as ONNX: written, checked in ONNX Runtime against PyTorch, and run there."""
