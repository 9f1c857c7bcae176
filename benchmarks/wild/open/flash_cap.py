"""The soft cap is applied after the mask, so masked scores become a finite -cap and keep some weight.

sgl-project/sgl-kernel-xpu #491 (2026); the order was first discussed in Dao-AILab/flash-attention #1025 (2024)
https://github.com/sgl-project/sgl-kernel-xpu/pull/491
"""
import torch
import torch.nn as nn


def _build(rev):
    class Gemma2Attention(nn.Module):
        """Causal attention with capped scores: softcap * tanh(scores / softcap) for every allowed pair.

        forward(hidden_states, attention_mask=None): attention_mask (B, T), 1 = token, 0 = padding.
        """

        def __init__(self, hidden_size=32, num_heads=4, attn_logit_softcapping=5.0):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.softcap = attn_logit_softcapping
            self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

        def cap(self, s):
            return self.softcap * torch.tanh(s / self.softcap)

        def forward(self, hidden_states, attention_mask=None):
            B, T, _ = hidden_states.shape
            q, k, v = (t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
                       for t in self.qkv_proj(hidden_states).chunk(3, -1))
            s = q @ k.transpose(2, 3) * self.head_dim ** -0.5
            drop = torch.ones(T, T, dtype=torch.bool, device=s.device).triu(1)[None, None]
            if attention_mask is not None:
                drop = drop | (attention_mask == 0)[:, None, None, :]
            if rev == 1:
                s = self.cap(s.masked_fill(drop, torch.finfo(s.dtype).min))
            else:
                s = self.cap(s).masked_fill(drop, torch.finfo(s.dtype).min)
            return self.o_proj((s.softmax(-1) @ v).transpose(1, 2).reshape(B, T, -1))

    torch.manual_seed(0)
    return Gemma2Attention()


def broken():
    return _build(1)


def fixed():
    return _build(2)
