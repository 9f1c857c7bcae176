from typing import Optional

import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Sigmoid self-attention (Ramapuram et al., 2024).

    Every weight is an independent sigmoid, rows are not normalised. The bias -log(n), n being the
    number of valid keys, makes the weights of a row add up to about one at initialisation.
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0):
        super().__init__()
        assert embed_dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.in_proj = nn.Linear(embed_dim, 3 * embed_dim)
        self.out_norm = nn.LayerNorm(embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor, key_padding_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """key_padding_mask: (B, T) boolean, True for padding (the convention of nn.MultiheadAttention)."""
        B, T, C = x.shape
        q, k, v = self.in_proj(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        logits = (q @ k.transpose(-2, -1)) * self.head_dim ** -0.5
        if key_padding_mask is None:
            n_keys = logits.new_full((B, 1, 1, 1), float(T))
        else:
            n_keys = (~key_padding_mask).sum(dim=1).clamp(min=1).to(logits.dtype).view(B, 1, 1, 1)
        weights = torch.sigmoid(logits - n_keys.log())
        if key_padding_mask is not None:
            # after the nonlinearity: there is no normalisation that the zeros could upset
            weights = weights.masked_fill(key_padding_mask[:, None, None, :], 0.0)

        out = self.dropout(weights) @ v
        out = out.transpose(1, 2).reshape(B, T, C)
        return self.out_proj(self.out_norm(out))
