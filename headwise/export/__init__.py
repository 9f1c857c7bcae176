"""Export of a trained task or a model to a format that another system runs, checked against PyTorch.

A model is exported as one or several `Graph`s: plain functions of tensors that another framework can run. `graphs/`
defines the graphs of each model; `onnx/` and `torch/` write graphs and run them; `savedmodel/` converts the Keras twin
of the model.
"""
