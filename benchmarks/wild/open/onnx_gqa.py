"""Key/value heads are tiled instead of each being repeated, so query heads read the wrong group.

onnx/onnx #7274 (2025)
https://github.com/onnx/onnx/pull/7274
"""
import torch
import torch.nn as nn


def _build(rev):
    class Attention(nn.Module):
        """Grouped-query attention: consecutive query heads share a key/value head, as with torch's enable_gqa.

        forward(x, attn_mask=None): x (B, T, C); attn_mask (T, T) bool, True = takes part; causal if is_causal.
        """

        def __init__(self, hidden=64, q_num_heads=4, kv_num_heads=2, is_causal=True):
            super().__init__()
            self.q_num_heads, self.kv_num_heads, self.is_causal = q_num_heads, kv_num_heads, is_causal
            self.head_size = hidden // q_num_heads
            self.q = nn.Linear(hidden, hidden)
            self.kv = nn.Linear(hidden, 2 * kv_num_heads * self.head_size)
            self.o = nn.Linear(hidden, hidden)

        def forward(self, x, attn_mask=None):
            B, T, C = x.shape
            q = self.q(x).view(B, T, self.q_num_heads, self.head_size).transpose(1, 2)
            k, v = (t.view(B, T, self.kv_num_heads, self.head_size).transpose(1, 2) for t in self.kv(x).chunk(2, -1))
            n = self.q_num_heads // self.kv_num_heads
            if rev == 1:
                k, v = k.tile(1, n, 1, 1), v.tile(1, n, 1, 1)
            else:
                k = k.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2)
                v = v.unsqueeze(2).expand(-1, -1, n, -1, -1).flatten(1, 2)
            s = q @ k.transpose(-1, -2) / self.head_size ** 0.5
            if self.is_causal:
                s = s.masked_fill(torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1), float("-inf"))
            if attn_mask is not None:
                s = s.masked_fill(~attn_mask, float("-inf"))
            return self.o((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
