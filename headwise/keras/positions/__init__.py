"""Position schemes, which tell attention the positions of tokens. Keras twins of `headwise.nn.positions`.

Inside an attention layer (`MultiHeadAttention(..., positions=)`): `Rope`, `Alibi`, `T5Buckets`, `ShawRelative`. Added
to the input, before the first layer: `Sinusoidal`, `Learned`.
"""

from headwise.keras.positions.absolute import Learned, Sinusoidal
from headwise.keras.positions.alibi import Alibi
from headwise.keras.positions.rope import Rope
from headwise.keras.positions.scheme import Positions
from headwise.keras.positions.shaw import ShawRelative
from headwise.keras.positions.t5 import T5Buckets
from headwise.nn.positions import DynamicNTK, Linear, Llama3, LongRope, Proportional, RopeScaling, Yarn

__all__ = [
    "Alibi",
    "DynamicNTK",
    "Learned",
    "Linear",
    "Llama3",
    "LongRope",
    "Positions",
    "Proportional",
    "Rope",
    "RopeScaling",
    "ShawRelative",
    "Sinusoidal",
    "T5Buckets",
    "Yarn",
]
