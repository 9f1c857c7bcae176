import torch
import torch.nn as nn


class PostNormEncoderLayer(nn.Module):
    """Encoder layer of the 2017 Transformer: LayerNorm(x + Sublayer(x)).

    mask: (batch, seq) bool, True where there is a token.
    """

    def __init__(self, d_model: int = 64, num_heads: int = 4, d_ff: int = 256, dropout: float = 0.1):
        super().__init__()
        self.mha = nn.MultiheadAttention(d_model, num_heads, dropout=dropout, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(d_model, d_ff), nn.ReLU(), nn.Linear(d_ff, d_model))
        self.norms = nn.ModuleList([nn.LayerNorm(d_model) for _ in range(2)])
        self.drop = nn.Dropout(dropout)

    def forward(self, x, mask=None):
        ignored = None if mask is None else ~mask.bool()
        attended = self.mha(x, x, x, key_padding_mask=ignored, need_weights=False)[0]
        x = self.norms[0](x + self.drop(attended))
        return self.norms[1](x + self.drop(self.ffn(x)))
