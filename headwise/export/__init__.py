"""From a trained run or a model to something that another system can run, checked against PyTorch.

A model is exported as one or several `Graph`s: plain functions of tensors, each of which another framework can hold.
`graphs/` says which graphs a model has; `onnx/` and `torch/` write graphs, and run them; `savedmodel/` goes through the
Keras twin.
"""
