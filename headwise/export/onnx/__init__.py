"""The format ONNX: graphs are written as ONNX files, run in ONNX Runtime, and compared with PyTorch."""
