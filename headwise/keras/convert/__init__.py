"""Conversion of layers of `headwise.keras` from and to PyTorch modules and layers of Keras.

The methods of the layers call it: `from_torch`, `to_torch`, `from_keras`, `to_keras`.
"""

from headwise.keras.convert.peers import from_keras, to_keras
from headwise.keras.convert.twins import from_torch, to_torch

__all__ = ["from_keras", "from_torch", "to_keras", "to_torch"]
