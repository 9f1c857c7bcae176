"""With a key/value cache the new tokens are rotated as if the sequence began with them.

time-series-foundation-models/lag-llama #84 (2024)
https://github.com/time-series-foundation-models/lag-llama/pull/84
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def _build(rev):
    def rotate_half(x):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((-x2, x1), dim=-1)

    class CausalSelfAttention(nn.Module):
        """Causal attention with rotary positions.

        forward(x, layer_past=None): x (B, T, n_embd), layer_past the (k, v) returned for the tokens before x, each
        (B, n_head, T_past, head_dim), already rotated. Returns (y, (k, v)).
        """

        def __init__(self, n_embd=32, n_head=4):
            super().__init__()
            self.n_head, self.head_dim = n_head, n_embd // n_head
            self.q_proj = nn.Linear(n_embd, n_embd, bias=False)
            self.kv_proj = nn.Linear(n_embd, 2 * n_embd, bias=False)
            self.c_proj = nn.Linear(n_embd, n_embd, bias=False)
            inv_freq = 1.0 / (10000 ** (torch.arange(0, self.head_dim, 2).float() / self.head_dim))
            self.register_buffer("inv_freq", inv_freq, persistent=False)

        def rotary_emb(self, start, T):
            freqs = torch.outer(torch.arange(start, start + T, device=self.inv_freq.device).float(), self.inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos(), emb.sin()

        def forward(self, x, layer_past=None):
            B, T, C = x.size()
            q = self.q_proj(x).view(B, T, self.n_head, self.head_dim).transpose(1, 2)
            k, v = (t.view(B, T, self.n_head, self.head_dim).transpose(1, 2) for t in self.kv_proj(x).split(C, dim=2))
            past = 0 if layer_past is None else layer_past[0].size(2)
            cos, sin = self.rotary_emb(0 if rev == 1 else past, T)
            q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
            if layer_past is not None:
                k, v = torch.cat([layer_past[0], k], dim=2), torch.cat([layer_past[1], v], dim=2)
            mask = torch.ones(T, past + T, dtype=torch.bool, device=x.device).tril(past)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.c_proj(y.transpose(1, 2).reshape(B, T, C)), (k, v)

    torch.manual_seed(0)
    return CausalSelfAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    with torch.no_grad():
        _, past = fixed()(torch.randn(2, 7, 32))
    return (torch.randn(2, 2, 32),), {"layer_past": past}
