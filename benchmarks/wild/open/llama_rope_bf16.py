"""Rotary phases are computed in bfloat16, where positions above 256 are no longer distinct integers.

huggingface/transformers #29285 (2024)
https://github.com/huggingface/transformers/pull/29285
"""
import torch
import torch.nn as nn


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class _RotaryBase(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2, dtype=torch.int64).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)


class GemmaAttention(nn.Module):
    """Causal attention with rotary positions; runs in the dtype of its weights."""

    def __init__(self, rotary, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = rotary(self.head_dim)

    def forward(self, hidden_states, position_ids=None):
        bsz, q_len, _ = hidden_states.shape
        query_states, key_states, value_states = (
            proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.q_proj, self.k_proj, self.v_proj))
        if position_ids is None:
            position_ids = torch.arange(q_len, device=hidden_states.device)[None]
        cos, sin = self.rotary_emb(value_states, position_ids)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        query_states = query_states * cos + rotate_half(query_states) * sin
        key_states = key_states * cos + rotate_half(key_states) * sin
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3)) * self.head_dim ** -0.5
        causal = torch.ones(q_len, q_len, dtype=torch.bool, device=hidden_states.device).tril()
        attn_weights = attn_weights.masked_fill(~causal, torch.finfo(attn_weights.dtype).min)
        attn_weights = nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)
        attn_output = torch.matmul(attn_weights, value_states)
        return self.o_proj(attn_output.transpose(1, 2).reshape(bsz, q_len, -1))


def broken() -> nn.Module:
    class GemmaRotaryEmbedding(_RotaryBase):
        def forward(self, x, position_ids):
            # x: [bs, num_attention_heads, seq_len, head_size]
            inv_freq_expanded = self.inv_freq[None, :, None].to(x.dtype).expand(position_ids.shape[0], -1, 1)
            position_ids_expanded = position_ids[:, None, :].to(x.dtype)
            freqs = (inv_freq_expanded @ position_ids_expanded).transpose(1, 2)
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)

    torch.manual_seed(0)
    return GemmaAttention(GemmaRotaryEmbedding).to(torch.bfloat16)


def fixed() -> nn.Module:
    class GemmaRotaryEmbedding(_RotaryBase):
        def _apply(self, fn, *args, **kwargs):
            inv_freq = self.inv_freq.float().clone()
            super()._apply(fn, *args, **kwargs)
            self.inv_freq = inv_freq.to(self.inv_freq.device)  # stays float32 whatever the model is cast to
            return self

        def forward(self, x, position_ids):
            # x: [bs, num_attention_heads, seq_len, head_size]
            inv_freq_expanded = self.inv_freq[None, :, None].float().expand(position_ids.shape[0], -1, 1)
            position_ids_expanded = position_ids[:, None, :].float()
            freqs = (inv_freq_expanded @ position_ids_expanded).transpose(1, 2)
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos().to(dtype=x.dtype), emb.sin().to(dtype=x.dtype)

    torch.manual_seed(0)
    return GemmaAttention(GemmaRotaryEmbedding).to(torch.bfloat16)


def example() -> tuple[tuple, dict]:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(1, 700, 32, generator=generator).to(torch.bfloat16),), {}
