from typing import Optional

import torch
import torch.nn as nn


class MultiheadAttentionPoolingHead(nn.Module):
    """MAP head (SigLIP style): a learned probe attends to the tokens of an encoder.

    Args:
        hidden_size: width of the tokens.
        num_probes: with more than one probe the pooled vectors are returned side by side.
        out_features: optional projection of every pooled vector.

    Shape:
        tokens (B, N, hidden_size) -> (B, num_probes, out) or, for one probe, (B, out).
    """

    def __init__(
        self,
        hidden_size: int = 192,
        num_heads: int = 6,
        mlp_ratio: float = 4.0,
        num_probes: int = 1,
        out_features: Optional[int] = None,
    ):
        super().__init__()
        self.num_probes = num_probes
        self.probe = nn.Parameter(torch.empty(1, num_probes, hidden_size))
        nn.init.normal_(self.probe, std=hidden_size ** -0.5)
        self.attention = nn.MultiheadAttention(hidden_size, num_heads, batch_first=True)
        self.layernorm = nn.LayerNorm(hidden_size)
        inner = int(hidden_size * mlp_ratio)
        self.mlp = nn.Sequential(nn.Linear(hidden_size, inner), nn.GELU(approximate="tanh"), nn.Linear(inner, hidden_size))
        self.proj = nn.Identity() if out_features is None else nn.Linear(hidden_size, out_features)

    def forward(self, tokens: torch.Tensor, mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """mask: (B, N), True for tokens that count. Raises if a sample has none."""
        ignore = None
        if mask is not None:
            mask = mask.bool()
            if not bool(mask.any(dim=1).all()):
                raise ValueError("every sample needs at least one token to pool")
            ignore = ~mask

        probe = self.probe.expand(tokens.size(0), -1, -1)
        # no residual around the attention: the probe is a question, not content
        x = self.attention(probe, tokens, tokens, key_padding_mask=ignore, need_weights=False)[0]
        x = x + self.mlp(self.layernorm(x))
        x = self.proj(x)
        return x.squeeze(1) if self.num_probes == 1 else x
