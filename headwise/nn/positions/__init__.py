"""Position schemes, which tell attention the positions of tokens.

Inside an attention module (`MultiHeadAttention(..., positions=)`): `Rope`, `Rope2D`, `Alibi`, `T5Buckets`,
`ShawRelative`. Added to the input, before the first layer: `Sinusoidal`, `Learned`.
"""

from headwise.nn.positions.absolute import Learned, Sinusoidal
from headwise.nn.positions.alibi import Alibi
from headwise.nn.positions.mrope import MRope
from headwise.nn.positions.rope import Rope
from headwise.nn.positions.rope_2d import Rope2D
from headwise.nn.positions.rope_scaling import (
    DynamicNTK,
    Linear,
    Llama3,
    LongRope,
    Proportional,
    RopeScaling,
    Yarn,
)
from headwise.nn.positions.scheme import Positions
from headwise.nn.positions.shaw import ShawRelative
from headwise.nn.positions.t5 import T5Buckets

__all__ = [
    "Alibi",
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "LongRope",
    "MRope",
    "Positions",
    "Proportional",
    "Rope",
    "Rope2D",
    "RopeScaling",
    "ShawRelative",
    "Sinusoidal",
    "T5Buckets",
    "Yarn",
]
