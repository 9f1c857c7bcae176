import torch
import torch.nn as nn


class CachedMaskAttention(nn.Module):
    """Causal self-attention that avoids rebuilding its bias on every call.

    Args:
        dim, num_heads: as usual.
    Inputs:
        x: (B, T, dim)
        lengths: optional LongTensor (B,), number of valid tokens in each (right-padded) row
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self._bias_cache = {}

    def _get_bias(self, batch, length, lengths, device, dtype):
        cache_key = (batch, length, device, dtype)
        if cache_key not in self._bias_cache:
            keep = torch.ones(length, length, dtype=torch.bool, device=device).tril()
            keep = keep.expand(batch, length, length)
            if lengths is not None:
                valid = torch.arange(length, device=device)[None, :] < lengths[:, None]
                keep = keep & valid[:, None, :]
            bias = torch.zeros(batch, 1, length, length, dtype=dtype, device=device)
            bias.masked_fill_(~keep.unsqueeze(1), torch.finfo(dtype).min)
            self._bias_cache[cache_key] = bias
        return self._bias_cache[cache_key]

    def forward(self, x, lengths=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        att = (q @ k.transpose(-2, -1)) * self.head_dim ** -0.5
        att = att + self._get_bias(B, T, lengths, x.device, att.dtype)
        att = att.softmax(dim=-1)
        y = (att @ v).transpose(1, 2).reshape(B, T, C)
        return self.proj(y)
