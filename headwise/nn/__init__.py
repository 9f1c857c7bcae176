"""Attention as PyTorch modules. All have the same arguments and accept the same masks, kernels, caches and records.

    layer(query, key=None, value=None, mask=None, cache=None, *, real=None, record=False)

Shapes are [batch, sequence, dim]; True in a mask = may attend, True or 1 in `real` = a real token.
"""

from headwise.nn import positions
from headwise.nn.cache import Cache
from headwise.nn.drop_path import DropPath
from headwise.nn.feed_forward import FeedForward
from headwise.nn.latent import LatentAttention
from headwise.nn.multi_head import MultiHeadAttention
from headwise.nn.multi_head_latent import MultiHeadLatentAttention
from headwise.nn.transformer import Decoder, Encoder
from headwise.nn.transformer_layer import DecoderLayer, EncoderLayer

__all__ = [
    "Cache",
    "Decoder",
    "DecoderLayer",
    "DropPath",
    "Encoder",
    "EncoderLayer",
    "FeedForward",
    "LatentAttention",
    "MultiHeadAttention",
    "MultiHeadLatentAttention",
    "positions",
]
