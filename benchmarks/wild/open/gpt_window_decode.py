"""During single-token decoding with a key/value cache the sliding window is ignored, so a query sees the whole cache.

karpathy/nanochat #452 (2026)
https://github.com/karpathy/nanochat/issues/452
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def norm(x):
    return F.rms_norm(x, (x.size(-1),))


def apply_rotary_emb(x, cos, sin):
    d = x.shape[3] // 2
    x1, x2 = x[..., :d], x[..., d:]
    return torch.cat([x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos], 3)


def _sdpa_attention(q, k, v, window, variant):
    """q, k, v: (B, H, T, D). `window` counts the keys to the left of the query that may be seen (-1: no limit)."""
    Tq, Tk = q.size(2), k.size(2)
    if (window < 0 or window >= Tq) and Tq == Tk:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if Tq == 1:
        if variant == "b" and 0 <= window < Tk:
            start = max(0, Tk - (window + 1))
            k, v = k[:, :, start:, :], v[:, :, start:, :]
        return F.scaled_dot_product_attention(q, k, v, is_causal=False)
    row_idx = (Tk - Tq) + torch.arange(Tq, device=q.device).unsqueeze(1)
    col_idx = torch.arange(Tk, device=q.device).unsqueeze(0)
    mask = col_idx <= row_idx
    if 0 <= window < Tk:
        mask = mask & ((row_idx - col_idx) <= window)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


class CausalSelfAttention(nn.Module):
    """Causal sliding-window attention.

    forward(x, kv_cache=None): x is (B, T, C); kv_cache is an optional (k, v) pair, each (B, H, T_past, D), of
    earlier tokens of the same sequence. Returns (y, (k, v)) with the cache extended by the new tokens.
    Each token sees itself and the `window` tokens before it.
    """

    def __init__(self, n_embd, n_head, window, variant):
        super().__init__()
        self.n_head, self.head_dim, self.window, self.variant = n_head, n_embd // n_head, window, variant
        self.c_q = nn.Linear(n_embd, n_embd, bias=False)
        self.c_k = nn.Linear(n_embd, n_embd, bias=False)
        self.c_v = nn.Linear(n_embd, n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
        inv_freq = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
        freqs = torch.outer(torch.arange(512).float(), inv_freq)
        self.register_buffer("cos", freqs.cos()[None, None], persistent=False)
        self.register_buffer("sin", freqs.sin()[None, None], persistent=False)

    def forward(self, x, kv_cache=None):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        k = self.c_k(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        v = self.c_v(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
        T0 = 0 if kv_cache is None else kv_cache[0].size(2)
        cos, sin = self.cos[:, :, T0:T0 + T], self.sin[:, :, T0:T0 + T]
        q, k = norm(apply_rotary_emb(q, cos, sin)), norm(apply_rotary_emb(k, cos, sin))
        if kv_cache is not None:
            k = torch.cat([kv_cache[0], k], dim=2)
            v = torch.cat([kv_cache[1], v], dim=2)
        y = _sdpa_attention(q, k, v, self.window, self.variant)
        y = y.transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y), (k, v)


def broken():
    torch.manual_seed(0)
    return CausalSelfAttention(32, 4, 4, "a")


def fixed():
    torch.manual_seed(0)
    return CausalSelfAttention(32, 4, 4, "b")


def example():
    torch.manual_seed(1)
    m = fixed()
    with torch.no_grad():
        _, cache = m(torch.randn(2, 12, 32))
    return (torch.randn(2, 1, 32),), {"kv_cache": cache}
