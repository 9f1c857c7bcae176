"""A long input rescales the cached rotary tables for good, so later short inputs are rotated with the wrong base.

huggingface/transformers #25306 (2023)
https://github.com/huggingface/transformers/issues/25306
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class _DynamicNTKScalingRotaryEmbeddingBase(nn.Module):
    """
    LlamaRotaryEmbedding extended with Dynamic NTK scaling. Credits to the Reddit users /u/bloc97 and /u/emozilla.
    Sequences of up to max_position_embeddings tokens use the base they were trained with.
    """

    def __init__(self, dim, max_position_embeddings=16, base=10000, scaling_factor=2.0):
        super().__init__()
        self.dim, self.base = dim, base
        self.max_position_embeddings = max_position_embeddings
        self.scaling_factor = scaling_factor
        # Build here to make `torch.jit.trace` work.
        self._set_cos_sin_cache(seq_len=max_position_embeddings)

    def _set_cos_sin_cache(self, seq_len):
        self.max_seq_len_cached = seq_len
        base = self.base
        if seq_len > self.max_position_embeddings:
            base = self.base * (
                (self.scaling_factor * seq_len / self.max_position_embeddings) - (self.scaling_factor - 1)
            ) ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2).float() / self.dim))
        freqs = torch.outer(torch.arange(seq_len).float(), inv_freq)
        # Different from paper, but it uses a different permutation in order to obtain the same calculation
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)


class _LlamaAttention(nn.Module):
    """Causal attention on hidden_states of shape [batch, seq, hidden]."""

    def __init__(self, rotary, hidden_size=32, num_heads=4):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = rotary(self.head_dim)

    def forward(self, hidden_states):
        q, k, v = (proj(hidden_states).unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)
                   for proj in (self.q_proj, self.k_proj, self.v_proj))
        cos, sin = self.rotary_emb(v, seq_len=hidden_states.shape[1])
        q, k = q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin
        attn_output = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(attn_output.transpose(1, 2).flatten(2))


def broken() -> nn.Module:
    class LlamaDynamicNTKScalingRotaryEmbedding(_DynamicNTKScalingRotaryEmbeddingBase):
        def forward(self, x, seq_len=None):
            # x: [bs, num_attention_heads, seq_len, head_size]
            if seq_len > self.max_seq_len_cached:
                self._set_cos_sin_cache(seq_len=seq_len)

            return self.cos_cached[:seq_len].to(x), self.sin_cached[:seq_len].to(x)

    torch.manual_seed(0)
    return _LlamaAttention(LlamaDynamicNTKScalingRotaryEmbedding)


def fixed() -> nn.Module:
    class LlamaDynamicNTKScalingRotaryEmbedding(_DynamicNTKScalingRotaryEmbeddingBase):
        def forward(self, x, seq_len=None):
            # x: [bs, num_attention_heads, seq_len, head_size]
            wanted = max(seq_len, self.max_position_embeddings)
            if wanted != self.max_seq_len_cached:
                self._set_cos_sin_cache(seq_len=wanted)

            return self.cos_cached[:seq_len].to(x), self.sin_cached[:seq_len].to(x)

    torch.manual_seed(0)
    return _LlamaAttention(LlamaDynamicNTKScalingRotaryEmbedding)
