import torch
import torch.nn as nn
import torch.nn.functional as F


class DynamicNTKRotaryEmbedding(nn.Module):
    """Rotary embedding whose base grows with the sequence once it is longer than the training context."""

    def __init__(self, dim, max_position_embeddings=2048, base=10000.0, scaling_factor=1.0):
        super().__init__()
        self.dim = dim
        self.max_position_embeddings = max_position_embeddings
        self.base = base
        self.scaling_factor = scaling_factor
        self._set_cos_sin_cache(max_position_embeddings, torch.device("cpu"))

    def _set_cos_sin_cache(self, seq_len, device):
        self.max_seq_len_cached = seq_len
        base = self.base
        if seq_len > self.max_position_embeddings:
            ratio = self.scaling_factor * seq_len / self.max_position_embeddings - (self.scaling_factor - 1)
            base = self.base * ratio ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim))
        t = torch.arange(seq_len, device=device).float()
        freqs = torch.outer(t, inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, x, seq_len):
        if seq_len > self.max_seq_len_cached:
            self._set_cos_sin_cache(seq_len, x.device)
        return self.cos_cached[:seq_len].to(x), self.sin_cached[:seq_len].to(x)


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


class LongContextAttention(nn.Module):
    """Causal self attention with dynamic NTK-aware RoPE.

    Sequences up to ``max_position_embeddings`` use the base of the pretraining; longer ones use a base
    computed from their length.
    """

    def __init__(self, hidden_size=64, num_heads=4, max_position_embeddings=32, rope_theta=10000.0, scaling_factor=2.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = DynamicNTKRotaryEmbedding(
            self.head_dim, max_position_embeddings, rope_theta, scaling_factor
        )

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.size()
        shape = (bsz, q_len, self.num_heads, self.head_dim)
        q = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        k = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        v = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = self.rotary_emb(v, q_len)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))
