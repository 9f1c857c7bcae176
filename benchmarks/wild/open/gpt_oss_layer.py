"""The learned sinks never reach the kernel (use_sinks is hard-wired to false), so the weights sum to one over the keys.

vllm-project/vllm-metal #550 (2026)
https://github.com/vllm-project/vllm-metal/pull/550
"""
import torch
import torch.nn as nn


def paged_attention(q, k, v, scale, sinks=None, window=0):
    T = q.shape[2]
    d = torch.arange(T, device=q.device)[:, None] - torch.arange(T, device=q.device)[None]
    keep = d >= 0
    if window:
        keep = keep & (d < window)
    s = (q @ k.transpose(2, 3) * scale).masked_fill(~keep, float("-inf"))
    if sinks is not None:
        col = sinks.view(1, -1, 1, 1).expand(s.shape[0], -1, T, 1)
        return torch.cat([s, col], -1).softmax(-1)[..., :-1] @ v
    return s.softmax(-1) @ v


def _build(rev):
    class AttentionBlock(nn.Module):
        """GPT-OSS attention: causal, grouped heads, sliding window, one learned sink logit per head that takes part in
        the softmax's denominator only. forward(x), x (B, T, hidden_size)."""

        def __init__(self, hidden_size=64, num_attention_heads=4, num_key_value_heads=2, sliding_window=6):
            super().__init__()
            self.head_dim = hidden_size // num_attention_heads
            self.num_attention_heads, self.num_key_value_heads = num_attention_heads, num_key_value_heads
            self.sliding_window = sliding_window
            self.sinks = nn.Parameter(torch.randn(num_attention_heads))
            self.q_proj = nn.Linear(hidden_size, num_attention_heads * self.head_dim)
            self.k_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
            self.v_proj = nn.Linear(hidden_size, num_key_value_heads * self.head_dim)
            self.o_proj = nn.Linear(hidden_size, hidden_size)
            self.sm_scale = self.head_dim ** -0.5

        def forward(self, x):
            B, T, _ = x.shape
            q = self.q_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
            k = self.k_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
            v = self.v_proj(x).view(B, T, -1, self.head_dim).transpose(1, 2)
            n = self.num_attention_heads // self.num_key_value_heads
            k, v = k.repeat_interleave(n, dim=1), v.repeat_interleave(n, dim=1)
            sinks = None if rev == 1 else self.sinks
            y = paged_attention(q, k, v, self.sm_scale, sinks=sinks, window=self.sliding_window)
            return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))

    torch.manual_seed(0)
    return AttentionBlock()


def broken():
    return _build(1)


def fixed():
    return _build(2)
