"""After one long input the dynamic NTK tables stay rescaled, so later short inputs are rotated differently.

huggingface/transformers #27227 (2023)
https://github.com/huggingface/transformers/pull/27227
"""
import torch
from torch import nn


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class _LlamaDynamicNTKScalingRotaryEmbeddingBase(nn.Module):
    """LlamaRotaryEmbedding extended with Dynamic NTK scaling. Credits to the Reddit users /u/bloc97 and /u/emozilla

    Up to `max_position_embeddings` tokens the original base is used, above it the base grows with the length of the
    current input.
    """

    def __init__(self, dim, max_position_embeddings=2048, base=10000, scaling_factor=1.0):
        super().__init__()
        self.dim = dim
        self.base = base
        self.max_position_embeddings = max_position_embeddings
        self.scaling_factor = scaling_factor
        self._set_cos_sin_cache(max_position_embeddings)

    def _set_cos_sin_cache(self, seq_len):
        self.max_seq_len_cached = seq_len
        base = self.base
        if seq_len > self.max_position_embeddings:
            base = self.base * (
                (self.scaling_factor * seq_len / self.max_position_embeddings) - (self.scaling_factor - 1)
            ) ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2).float() / self.dim))
        emb = torch.outer(torch.arange(seq_len).float(), inv_freq).repeat(1, 2)
        self.cos_cached, self.sin_cached = emb.cos(), emb.sin()


class _LlamaAttention(nn.Module):
    """Causal self attention of `(batch_size, sequence_length, hidden_size)` inputs."""

    def __init__(self, rotary_emb, hidden_size=32, num_heads=2):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = rotary_emb(self.head_dim, max_position_embeddings=8, scaling_factor=8.0)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.shape
        q, k, v = (f(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
                   for f in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = self.rotary_emb(v, seq_len=q_len)
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))


def broken() -> nn.Module:
    class LlamaDynamicNTKScalingRotaryEmbedding(_LlamaDynamicNTKScalingRotaryEmbeddingBase):
        def forward(self, x, seq_len):
            if seq_len > self.max_seq_len_cached:
                self._set_cos_sin_cache(seq_len=seq_len)
            return self.cos_cached[:seq_len].to(x), self.sin_cached[:seq_len].to(x)

    torch.manual_seed(0)
    return _LlamaAttention(LlamaDynamicNTKScalingRotaryEmbedding)


def fixed() -> nn.Module:
    class LlamaDynamicNTKScalingRotaryEmbedding(_LlamaDynamicNTKScalingRotaryEmbeddingBase):
        def forward(self, x, seq_len):
            length = max(seq_len, self.max_position_embeddings)
            if length != self.max_seq_len_cached:
                self._set_cos_sin_cache(seq_len=length)
            return self.cos_cached[:seq_len].to(x), self.sin_cached[:seq_len].to(x)

    torch.manual_seed(0)
    return _LlamaAttention(LlamaDynamicNTKScalingRotaryEmbedding)


def example():
    g = torch.Generator().manual_seed(24)
    return (torch.randn(1, 16, 32, generator=g),), {}
