"""Export of a trained task or a model to a format that another system runs, compared with PyTorch.

A model is exported as one or several graphs (`headwise.graphs`). A graph is a function of named tensors that another
framework can run. Each format has a folder: `onnx/` and `torch/` write graphs and run them; `savedmodel/` converts the
model's Keras twin (the same model, built from Keras layers). `FORMATS` is the one list of formats, by name. Another
package adds a format by an entry point of the group "headwise.formats": matrix = "package.module:MATRIX", a `Format`.
"""

from headwise.export.format import Format
from headwise.export.onnx.format import ONNX
from headwise.export.savedmodel.format import SAVEDMODEL
from headwise.export.torch.format import TORCH
from headwise.plugins import Plugins

FORMATS = Plugins("headwise.formats", Format, {each.name: each for each in (ONNX, TORCH, SAVEDMODEL)})

__all__ = ["FORMATS", "Format"]


def __dir__() -> list[str]:
    return __all__
