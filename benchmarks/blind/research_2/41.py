import torch
import torch.nn as nn
import torch.nn.functional as F


class NTKScaledRotaryEmbedding(nn.Module):
    """Rotary embedding with dynamic NTK scaling beyond the trained context."""

    def __init__(self, dim, max_position_embeddings=2048, base=10000, scaling_factor=1.0):
        super().__init__()
        self.dim = dim
        self.base = base
        self.max_position_embeddings = max_position_embeddings
        self.scaling_factor = scaling_factor

    def forward(self, seq_len, device, dtype):
        base = self.base
        if seq_len > self.max_position_embeddings:
            ratio = self.scaling_factor * seq_len / self.max_position_embeddings - (self.scaling_factor - 1)
            base = self.base * ratio ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim))
        t = torch.arange(seq_len, device=device, dtype=dtype)
        freqs = t[:, None] * inv_freq.to(dtype)[None, :]
        emb = torch.cat((freqs, freqs), dim=-1)
        return emb.cos(), emb.sin()


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class LongContextAttention(nn.Module):
    """Causal self-attention for long documents.

    The weights and the residual stream stay in the dtype of the model; the attention kernel runs in
    ``compute_dtype``.
    """

    def __init__(self, dim=128, num_heads=4, max_position_embeddings=2048, rope_base=10000,
                 compute_dtype=torch.bfloat16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.compute_dtype = compute_dtype
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.rotary_emb = NTKScaledRotaryEmbedding(self.head_dim, max_position_embeddings, rope_base)

    def _split(self, t):
        return t.view(*t.shape[:2], self.num_heads, self.head_dim).transpose(1, 2).to(self.compute_dtype)

    def forward(self, hidden_states):
        bsz, q_len, dim = hidden_states.shape
        q = self._split(self.q_proj(hidden_states))
        k = self._split(self.k_proj(hidden_states))
        v = self._split(self.v_proj(hidden_states))

        cos, sin = self.rotary_emb(q_len, q.device, q.dtype)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out = out.transpose(1, 2).reshape(bsz, q_len, dim)
        return self.o_proj(out.to(hidden_states.dtype))
