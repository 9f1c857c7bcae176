from typing import Optional

import torch
import torch.nn.functional as F
from torch import nn


class PrefixEncoder(nn.Module):
    """Trainable prefix, reparameterised through a small MLP: -> key and value of every prefix slot."""

    def __init__(self, prefix_len: int, dim: int, hidden: int):
        super().__init__()
        self.embedding = nn.Embedding(prefix_len, dim)
        self.trans = nn.Sequential(nn.Linear(dim, hidden), nn.Tanh(), nn.Linear(hidden, 2 * dim))

    def forward(self):
        return self.trans(self.embedding.weight).chunk(2, dim=-1)


class PrefixTuningAttention(nn.Module):
    """Causal self-attention of a frozen model with a trained prefix of virtual tokens.

    Args:
        dim, num_heads: size of the frozen attention.
        prefix_len: number of virtual tokens, visible to all queries.
        prefix_hidden: width of the reparameterisation MLP.
        prefix_dropout: dropout on the produced prefix keys and values.

    Only the prefix encoder is trainable.
    """

    def __init__(
        self,
        dim: int = 256,
        num_heads: int = 8,
        prefix_len: int = 10,
        prefix_hidden: int = 512,
        prefix_dropout: float = 0.0,
    ):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.prefix_len = prefix_len
        self.c_attn = nn.Linear(dim, 3 * dim)
        self.c_proj = nn.Linear(dim, dim)
        for p in self.parameters():
            p.requires_grad_(False)
        self.prefix_encoder = PrefixEncoder(prefix_len, dim, prefix_hidden)
        self.dropout = nn.Dropout(prefix_dropout)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.view(t.shape[0], t.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """attention_mask: (batch, seq), 1 for tokens, 0 for padding; the prefix is added to it here."""
        b, t, d = x.shape
        q, k, v = self.c_attn(x).chunk(3, dim=-1)

        prefix_k, prefix_v = (self.dropout(p).unsqueeze(0).expand(b, -1, -1) for p in self.prefix_encoder())
        k = torch.cat([prefix_k.to(k.dtype), k], dim=1)
        v = torch.cat([prefix_v.to(v.dtype), v], dim=1)
        q, k, v = self._heads(q), self._heads(k), self._heads(v)

        p = self.prefix_len
        allowed = torch.ones(t, p + t, dtype=torch.bool, device=x.device).tril(diagonal=p)[None, None]
        if attention_mask is not None:
            keys = F.pad(attention_mask.bool(), (p, 0), value=True)
            allowed = allowed & keys[:, None, None, :]

        out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.c_proj(out.transpose(1, 2).reshape(b, t, d))
