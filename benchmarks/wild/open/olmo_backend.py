"""Window masks are kept in a cache whose key leaves out the window size, so later layers use the first layer's window.

allenai/OLMo-core #388 (2025)
https://github.com/allenai/OLMo-core/pull/388
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    class BufferCache(dict):
        pass

    class TorchAttentionBackend(nn.Module):
        """window_size: (left, right) keys a query sees besides itself."""

        def __init__(self, window_size, cache):
            super().__init__()
            self.window_size, self.cache = window_size, cache

        def _get_sliding_window_mask(self, seq_len_q, seq_len_kv, device, window_size):
            key = f"seq_len_q={seq_len_q},seq_len_kv={seq_len_kv}"
            if rev == 2:
                key += f",window_size={window_size}"
            if key not in self.cache:
                d = torch.arange(seq_len_q, device=device)[:, None] - torch.arange(seq_len_kv, device=device)[None]
                self.cache[key] = (d <= window_size[0]) & (d >= -window_size[1])
            return self.cache[key]

        def forward(self, q, k, v):
            mask = self._get_sliding_window_mask(q.shape[1], k.shape[1], q.device, self.window_size)
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).contiguous()

    class Attention(nn.Module):
        def __init__(self, d_model, n_heads, window_size, cache):
            super().__init__()
            self.n_heads = n_heads
            self.w_q = nn.Linear(d_model, d_model, bias=False)
            self.w_k = nn.Linear(d_model, d_model, bias=False)
            self.w_v = nn.Linear(d_model, d_model, bias=False)
            self.w_out = nn.Linear(d_model, d_model, bias=False)
            self.backend = TorchAttentionBackend(window_size, cache)

        def forward(self, x):
            B, T, C = x.shape
            q, k, v = (w(x).view(B, T, self.n_heads, -1) for w in (self.w_q, self.w_k, self.w_v))
            return self.w_out(self.backend(q, k, v).view(B, T, -1))

    class Transformer(nn.Module):
        """Causal layers with windows of 3, 3 and 8 keys to the left; forward(x), x (B, T, d_model)."""

        def __init__(self, d_model=32, n_heads=4, windows=((2, 0), (2, 0), (7, 0))):
            super().__init__()
            cache = BufferCache()
            self.attention = nn.ModuleList(Attention(d_model, n_heads, w, cache) for w in windows)
            self.norm = nn.ModuleList(nn.RMSNorm(d_model) for _ in windows)

        def forward(self, x):
            for norm, att in zip(self.norm, self.attention):
                x = x + norm(att(x))
            return x

    torch.manual_seed(0)
    return Transformer()


def broken():
    return _build(1)


def fixed():
    return _build(2)
