"""The rotary frequencies are cast to bfloat16 before they are multiplied by the positions, so phases of late tokens are wrong.

Modalities/modalities #462 (2026); the same fault in huggingface/transformers #29285 (2024)
https://github.com/Modalities/modalities/pull/462
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class RotaryTransform(nn.Module):
        def __init__(self, head_dim, base_freq=10000):
            super().__init__()
            self.head_dim, self.base_freq = head_dim, base_freq

        def _cos_sin(self, x):
            inv_freq = 1.0 / (self.base_freq ** (torch.arange(0, self.head_dim, 2, device=x.device).float() / self.head_dim))
            t = torch.arange(x.shape[-2], device=x.device, dtype=torch.float32)
            if rev == 1:
                inv_freq = inv_freq.to(x.dtype)
            freqs = torch.einsum("i,j->ij", t, inv_freq.float())
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos().to(x.dtype), emb.sin().to(x.dtype)

        def forward(self, q, k, v):
            cos, sin = self._cos_sin(k)

            def rot(x):
                x1, x2 = x.chunk(2, dim=-1)
                return x * cos + torch.cat((-x2, x1), dim=-1) * sin
            return rot(q), rot(k), v

    class CausalSelfAttention(nn.Module):
        """Causal self-attention with rotary positions, weights in bfloat16; forward(x), x (B, T, n_embd) bfloat16."""

        def __init__(self, n_embd=64, n_head=4):
            super().__init__()
            self.n_head, self.head_dim = n_head, n_embd // n_head
            self.q_attn = nn.Linear(n_embd, n_embd, bias=False)
            self.k_attn = nn.Linear(n_embd, n_embd, bias=False)
            self.v_attn = nn.Linear(n_embd, n_embd, bias=False)
            self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
            self.qkv_transform = RotaryTransform(self.head_dim)
            for p in (self.q_attn, self.k_attn):
                nn.init.normal_(p.weight, std=0.3)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (p(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
                       for p in (self.q_attn, self.k_attn, self.v_attn))
            q, k, v = self.qkv_transform(q, k, v)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C))

    torch.manual_seed(0)
    return CausalSelfAttention().to(torch.bfloat16)


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(1, 700, 64, dtype=torch.bfloat16),), {}
