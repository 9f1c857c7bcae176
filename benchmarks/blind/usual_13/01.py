import math

import torch
import torch.nn as nn


def scaled_dot_product(q, k, v, mask=None):
    d_k = q.size(-1)
    logits = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(d_k)
    if mask is not None:
        logits = logits.masked_fill(mask == 0, -9e15)
    attention = torch.softmax(logits, dim=-1)
    return torch.matmul(attention, v), attention


class MultiheadAttention(nn.Module):
    """Multi-head self-attention.

    Args:
        input_dim: dimensionality of the input features.
        embed_dim: dimensionality of the concatenated heads.
        num_heads: number of heads.
    """

    def __init__(self, input_dim=64, embed_dim=64, num_heads=4):
        super().__init__()
        assert embed_dim % num_heads == 0, "embed_dim must be 0 modulo num_heads"
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads

        self.qkv_proj = nn.Linear(input_dim, 3 * embed_dim)
        self.o_proj = nn.Linear(embed_dim, embed_dim)
        self._reset_parameters()

    def _reset_parameters(self):
        nn.init.xavier_uniform_(self.qkv_proj.weight)
        self.qkv_proj.bias.data.fill_(0)
        nn.init.xavier_uniform_(self.o_proj.weight)
        self.o_proj.bias.data.fill_(0)

    def forward(self, x, mask=None, return_attention=False):
        """mask: (batch, seq, seq) or (batch, heads, seq, seq), 1 = may attend."""
        batch_size, seq_length, _ = x.size()
        if mask is not None and mask.dim() == 3:
            mask = mask.unsqueeze(1)

        qkv = self.qkv_proj(x)
        qkv = qkv.reshape(batch_size, seq_length, self.num_heads, 3 * self.head_dim)
        qkv = qkv.permute(0, 2, 1, 3)  # [Batch, Head, SeqLen, Dims]
        q, k, v = qkv.chunk(3, dim=-1)

        values, attention = scaled_dot_product(q, k, v, mask=mask)
        values = values.reshape(batch_size, seq_length, self.embed_dim)
        o = self.o_proj(values)

        if return_attention:
            return o, attention
        return o
