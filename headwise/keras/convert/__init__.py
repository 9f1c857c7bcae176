"""Layers of `headwise.keras` made of others, and others made of them: the modules of PyTorch, and Keras's own layers.

Reached by the methods of the layers: `from_torch`, `to_torch`, `from_keras`, `to_keras`.
"""

from headwise.keras.convert.peers import from_keras, to_keras
from headwise.keras.convert.twins import from_torch, to_torch

__all__ = ["from_keras", "from_torch", "to_keras", "to_torch"]
