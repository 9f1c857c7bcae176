import torch
import torch.nn.functional as F
from torch import nn


class PrefixLMAttention(nn.Module):
    """Self-attention of a prefix language model.

    The first ``prefix_len`` tokens of every sequence (the prompt, or the image tokens) see one another in both
    directions. The tokens behind the prefix are causal. ``prefix_len=None`` or 0 gives a plain causal model.
    """

    def __init__(self, d_model=256, n_heads=8, dropout=0.0):
        super().__init__()
        self.n_heads = n_heads
        self.dropout = dropout
        self.wq = nn.Linear(d_model, d_model, bias=False)
        self.wk = nn.Linear(d_model, d_model, bias=False)
        self.wv = nn.Linear(d_model, d_model, bias=False)
        self.wo = nn.Linear(d_model, d_model, bias=False)

    @staticmethod
    def prefix_mask(prefix_len, length, device):
        """(batch, 1, length, length), True where attention is allowed."""
        pos = torch.arange(length, device=device)
        causal = pos[None, :, None] >= pos[None, None, :]
        key_in_prefix = pos[None, None, :] < prefix_len[:, None, None]
        return (causal | key_in_prefix).unsqueeze(1)

    def forward(self, x, prefix_len=None):
        """prefix_len: (batch,) integers"""
        b, t, c = x.shape
        if prefix_len is None:
            prefix_len = torch.zeros(b, dtype=torch.long, device=x.device)

        q = self.wq(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        k = self.wk(x).view(b, t, self.n_heads, -1).transpose(1, 2)
        v = self.wv(x).view(b, t, self.n_heads, -1).transpose(1, 2)

        out = F.scaled_dot_product_attention(
            q, k, v,
            attn_mask=self.prefix_mask(prefix_len, t, x.device),
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.wo(out.transpose(1, 2).reshape(b, t, c))
