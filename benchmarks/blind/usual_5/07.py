from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class SpeechAttention(nn.Module):
    """Attention of the acoustic encoder. All tensors are (time, batch, channel).

    ``lengths_mask`` is (batch, source time) and True on frames past the end of
    an utterance.
    """

    def __init__(self, embed_dim: int = 144, num_heads: int = 4, attention_dropout: float = 0.1):
        super().__init__()
        if embed_dim % num_heads != 0:
            raise ValueError(f"{embed_dim} is not a multiple of {num_heads}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.attention_dropout = attention_dropout
        self.in_proj_q = nn.Linear(embed_dim, embed_dim)
        self.in_proj_k = nn.Linear(embed_dim, embed_dim, bias=False)
        self.in_proj_v = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

    def _shape(self, x: torch.Tensor) -> torch.Tensor:
        steps, batch, _ = x.shape
        x = x.contiguous().view(steps, batch * self.num_heads, self.head_dim)
        return x.transpose(0, 1)

    def forward(self, query: torch.Tensor, source: Optional[torch.Tensor] = None,
                lengths_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        source = query if source is None else source
        tgt_len, batch, _ = query.shape

        q = self._shape(self.in_proj_q(query)) * self.head_dim ** -0.5
        k = self._shape(self.in_proj_k(source))
        v = self._shape(self.in_proj_v(source))

        logits = torch.bmm(q, k.transpose(1, 2))
        if lengths_mask is not None:
            mask = lengths_mask.bool().repeat(self.num_heads, 1)
            logits = logits.masked_fill(mask.unsqueeze(1), -1e4)

        probs = F.softmax(logits, dim=-1)
        probs = F.dropout(probs, p=self.attention_dropout, training=self.training)
        context = torch.bmm(probs, v)
        context = context.transpose(0, 1).reshape(tgt_len, batch, self.embed_dim)
        return self.out_proj(context)
