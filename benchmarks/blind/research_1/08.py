from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicNTKRotaryEmbedding(nn.Module):
    """Rotary embedding extended with dynamic NTK scaling. Credits to u/bloc97 and u/emozilla.

    Up to ``max_position_embeddings`` tokens the original frequencies apply; for longer inputs the
    base is enlarged in proportion to the length.
    """

    def __init__(self, dim, max_position_embeddings=128, base=10000.0, scaling_factor=2.0):
        super().__init__()
        self.dim = dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.scaling_factor = scaling_factor
        self.max_seq_len_cached = 0
        self._set_cos_sin_cache(max_position_embeddings, torch.device("cpu"))

    def _set_cos_sin_cache(self, seq_len, device):
        self.max_seq_len_cached = seq_len
        base = self.base
        if seq_len > self.max_position_embeddings:
            base = self.base * (
                (self.scaling_factor * seq_len / self.max_position_embeddings) - (self.scaling_factor - 1)
            ) ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim))
        t = torch.arange(seq_len, device=device).float()
        freqs = torch.outer(t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, x, seq_len) -> Tuple[torch.Tensor, torch.Tensor]:
        if seq_len > self.max_seq_len_cached:
            self._set_cos_sin_cache(seq_len, x.device)
        return (
            self.cos_cached[:seq_len].to(device=x.device, dtype=x.dtype),
            self.sin_cached[:seq_len].to(device=x.device, dtype=x.dtype),
        )


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class LongContextAttention(nn.Module):
    def __init__(self, hidden_size: int = 64, num_heads: int = 4, max_position_embeddings: int = 128,
                 rope_theta: float = 10000.0, rope_factor: float = 2.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.qkv_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = DynamicNTKRotaryEmbedding(
            self.head_dim, max_position_embeddings, rope_theta, rope_factor)

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """``attention_mask``: (batch, seq) with 1 = token, 0 = (right) padding."""
        bsz, q_len, width = hidden_states.size()
        q, k, v = self.qkv_proj(hidden_states).view(bsz, q_len, 3, self.num_heads, self.head_dim).unbind(2)
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)

        cos, sin = self.rotary_emb(v, q_len)
        q, k = apply_rotary_pos_emb(q, k, cos, sin)

        keep = torch.ones(q_len, q_len, dtype=torch.bool, device=q.device).tril()[None, None]
        if attention_mask is not None:
            keep = keep & attention_mask[:, None, None, :].bool()
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, width))
