import math
from typing import Optional

import torch
from torch import Tensor, nn


class DeepNormEncoderLayer(nn.Module):
    """
    Post-norm encoder layer with DeepNorm (Wang et al., 2022).

    x = LayerNorm(alpha * x + sublayer(x)) with alpha = (2N)^(1/4). The weights of the value, output and
    feed-forward projections are initialised with gain beta = (8N)^(-1/4), those of query and key with 1.

    src: (batch, len, d_model); pad_mask: bool (batch, len), True at padding.
    """

    def __init__(self, d_model: int = 64, num_heads: int = 4, d_ff: int = 128, num_layers: int = 12, dropout: float = 0.1):
        super().__init__()
        self.alpha = (2 * num_layers) ** 0.25
        beta = (8 * num_layers) ** -0.25
        self.num_heads = num_heads
        self.head_dim = d_model // num_heads

        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.fc1 = nn.Linear(d_model, d_ff)
        self.fc2 = nn.Linear(d_ff, d_model)
        for layer, gain in (
            (self.q, 1.0),
            (self.k, 1.0),
            (self.v, beta),
            (self.o, beta),
            (self.fc1, beta),
            (self.fc2, beta),
        ):
            nn.init.xavier_normal_(layer.weight, gain=gain)
            nn.init.zeros_(layer.bias)

        self.norm1 = nn.LayerNorm(d_model)
        self.norm2 = nn.LayerNorm(d_model)
        self.dropout = nn.Dropout(dropout)

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def _attention(self, x: Tensor, pad_mask: Optional[Tensor]) -> Tensor:
        q, k, v = self._heads(self.q(x)), self._heads(self.k(x)), self._heads(self.v(x))
        scores = q @ k.mT / math.sqrt(self.head_dim)
        if pad_mask is not None:
            scores = scores.masked_fill(pad_mask[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = self.dropout(scores.softmax(-1))
        return self.o((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, src: Tensor, pad_mask: Optional[Tensor] = None) -> Tensor:
        x = self.norm1(self.alpha * src + self.dropout(self._attention(src, pad_mask)))
        ff = self.fc2(torch.relu(self.fc1(x)))
        return self.norm2(self.alpha * x + self.dropout(ff))
