import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class DynamicNTKRotaryEmbedding(nn.Module):
    """Rotary tables whose base grows with the sequence once it is longer than the training length.

    Sequences up to ``max_position_embeddings`` use the base of the pretrained model.
    """

    def __init__(self, dim, max_position_embeddings, base=10000.0, factor=1.0):
        super().__init__()
        self.dim = dim
        self.base = base
        self.factor = factor
        self.max_position_embeddings = max_position_embeddings
        self.cached_len = 0
        self.register_buffer("cos_cached", torch.empty(0), persistent=False)
        self.register_buffer("sin_cached", torch.empty(0), persistent=False)
        self._set_cache(max_position_embeddings, torch.device("cpu"))

    def _set_cache(self, seq_len, device):
        base = self.base
        if seq_len > self.max_position_embeddings:
            ratio = self.factor * seq_len / self.max_position_embeddings - (self.factor - 1)
            base = base * ratio ** (self.dim / (self.dim - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2, device=device).float() / self.dim))
        freqs = torch.outer(torch.arange(seq_len, device=device).float(), inv_freq)
        emb = torch.cat((freqs, freqs), dim=-1)
        self.cos_cached = emb.cos()
        self.sin_cached = emb.sin()
        self.cached_len = seq_len

    def forward(self, x, seq_len):
        if seq_len > self.cached_len:
            self._set_cache(seq_len, x.device)
        return self.cos_cached[:seq_len].to(x.dtype), self.sin_cached[:seq_len].to(x.dtype)


class LongContextAttention(nn.Module):
    """Causal attention of a decoder with dynamic NTK-aware rotary positions.

    Args:
        hidden_size: model width.
        num_heads: number of heads.
        max_position_embeddings: context length of the pretrained model.
        rope_factor: scaling factor of the NTK formula.
    """

    def __init__(self, hidden_size=128, num_heads=4, max_position_embeddings=32, rope_factor=2.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.rotary_emb = DynamicNTKRotaryEmbedding(self.head_dim, max_position_embeddings, factor=rope_factor)

    def forward(self, hidden_states):
        bsz, q_len, _ = hidden_states.shape
        q = self.q_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.k_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.v_proj(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
        cos, sin = self.rotary_emb(v, q_len)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, -1))
