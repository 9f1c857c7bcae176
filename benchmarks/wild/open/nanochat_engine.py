"""Single-token decoding with a KV cache ignores the sliding window and attends to the whole cache.

karpathy/nanochat #452 (2026)
https://github.com/karpathy/nanochat/issues/452
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def norm(x):
    # Purely functional rmsnorm with no learnable params
    return F.rms_norm(x, (x.size(-1),))


def apply_rotary_emb(x, cos, sin):
    assert x.ndim == 4  # multihead attention, (B, T, H, D)
    d = x.shape[3] // 2
    x1, x2 = x[..., :d], x[..., d:]  # split up last dim into two halves
    return torch.cat([x1 * cos + x2 * sin, x1 * (-sin) + x2 * cos], 3)


class KVCache:
    def __init__(self, num_layers):
        self.k, self.v = [None] * num_layers, [None] * num_layers

    def get_pos(self):
        return 0 if self.k[0] is None else self.k[0].size(2)

    def insert_kv(self, layer_idx, k, v):
        if self.k[layer_idx] is not None:
            k, v = torch.cat([self.k[layer_idx], k], dim=2), torch.cat([self.v[layer_idx], v], dim=2)
        self.k[layer_idx], self.v[layer_idx] = k, v
        return k, v


class CausalSelfAttention(nn.Module):
    def __init__(self, n_embd, n_head, layer_idx, sdpa_attention):
        super().__init__()
        self.layer_idx, self.n_head, self.head_dim = layer_idx, n_head, n_embd // n_head
        self.sdpa_attention = sdpa_attention
        self.c_q = nn.Linear(n_embd, n_embd, bias=False)
        self.c_k = nn.Linear(n_embd, n_embd, bias=False)
        self.c_v = nn.Linear(n_embd, n_embd, bias=False)
        self.c_proj = nn.Linear(n_embd, n_embd, bias=False)

    def forward(self, x, cos_sin, window_size, kv_cache):
        B, T, C = x.size()
        q = self.c_q(x).view(B, T, self.n_head, self.head_dim)
        k = self.c_k(x).view(B, T, self.n_head, self.head_dim)
        v = self.c_v(x).view(B, T, self.n_head, self.head_dim)
        cos, sin = cos_sin
        q, k = norm(apply_rotary_emb(q, cos, sin)), norm(apply_rotary_emb(k, cos, sin))  # QK norm
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        if kv_cache is not None:
            k, v = kv_cache.insert_kv(self.layer_idx, k, v)
        y = self.sdpa_attention(q, k, v, window_size)
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, -1))


class GPT(nn.Module):
    """
    Token ids in, logits out. Every layer uses a sliding window of `window` tokens to the left (and the token
    itself); -1 is full context. Pass a KVCache to decode incrementally.
    """

    def __init__(self, sdpa_attention, vocab_size=50, n_embd=32, n_head=4, n_layer=2, window=3, max_len=64):
        super().__init__()
        self.window_size = (window, 0)
        self.wte = nn.Embedding(vocab_size, n_embd)
        self.attns = nn.ModuleList([CausalSelfAttention(n_embd, n_head, i, sdpa_attention) for i in range(n_layer)])
        self.mlps = nn.ModuleList([nn.Sequential(nn.Linear(n_embd, 4 * n_embd, bias=False), nn.ReLU(),
                                                 nn.Linear(4 * n_embd, n_embd, bias=False)) for _ in range(n_layer)])
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False)
        head_dim = n_embd // n_head
        inv_freq = 1.0 / (10000 ** (torch.arange(0, head_dim, 2).float() / head_dim))
        freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
        self.register_buffer("cos", freqs.cos()[None, :, None, :], persistent=False)
        self.register_buffer("sin", freqs.sin()[None, :, None, :], persistent=False)

    def forward(self, idx, kv_cache=None):
        T0 = 0 if kv_cache is None else kv_cache.get_pos()
        cos_sin = self.cos[:, T0:T0 + idx.size(1)], self.sin[:, T0:T0 + idx.size(1)]
        x = norm(self.wte(idx))
        for attn, mlp in zip(self.attns, self.mlps):
            x = x + attn(norm(x), cos_sin, self.window_size, kv_cache)
            x = x + mlp(norm(x))
        return self.lm_head(norm(x))


def broken() -> nn.Module:
    def _sdpa_attention(q, k, v, window_size):
        """
        SDPA attention with sliding window support.
        q, k, v are (B, H, T, D) format.
        """
        Tq = q.size(2)
        Tk = k.size(2)
        window = window_size[0]

        # Full context, same length
        if (window < 0 or window >= Tq) and Tq == Tk:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        # Single token generation
        if Tq == 1:
            return F.scaled_dot_product_attention(q, k, v, is_causal=False)

        # Need explicit mask for sliding window/chunk inference
        row_idx = (Tk - Tq) + torch.arange(Tq, device=q.device).unsqueeze(1)
        col_idx = torch.arange(Tk, device=q.device).unsqueeze(0)
        mask = col_idx <= row_idx
        if window >= 0 and window < Tk:
            mask = mask & ((row_idx - col_idx) <= window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    torch.manual_seed(0)
    return GPT(_sdpa_attention)


def fixed() -> nn.Module:
    def _sdpa_attention(q, k, v, window_size):
        """
        SDPA attention with sliding window support.
        q, k, v are (B, H, T, D) format.
        """
        Tq = q.size(2)
        Tk = k.size(2)
        window = window_size[0]

        # Full context, same length
        if (window < 0 or window >= Tq) and Tq == Tk:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

        # Single token generation
        if Tq == 1:
            if window >= 0 and window < Tk:
                # window is "left" tokens we need to include (window + 1) keys total
                start = max(0, Tk - (window + 1))
                k = k[:, :, start:, :]
                v = v[:, :, start:, :]
            return F.scaled_dot_product_attention(q, k, v, is_causal=False)

        # Need explicit mask for sliding window/chunk inference
        row_idx = (Tk - Tq) + torch.arange(Tq, device=q.device).unsqueeze(1)
        col_idx = torch.arange(Tk, device=q.device).unsqueeze(0)
        mask = col_idx <= row_idx
        if window >= 0 and window < Tk:
            mask = mask & ((row_idx - col_idx) <= window)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    torch.manual_seed(0)
    return GPT(_sdpa_attention)


def example() -> tuple[tuple, dict]:
    return (torch.tensor([[3, 17, 8, 41, 5, 29, 11, 2, 30, 7]]),), {"kv_cache": KVCache(2)}
