"""Converts PyTorch modules, and attention layers of Keras, to layers of `headwise.keras`, and back.

The methods `from_torch`, `to_torch`, `from_keras` and `to_keras` of the layers call this package.
"""

from headwise.keras.convert.peers import from_keras, to_keras
from headwise.keras.convert.twins import from_torch, to_torch

__all__ = ["from_keras", "from_torch", "to_keras", "to_torch"]
