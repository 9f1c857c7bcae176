import torch
import torch.nn as nn
import torch.nn.functional as F


def rotate_half(x):
    x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((-x2, x1), dim=-1)


class Rotary(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq)
        self.seq_len_cached = 0
        self.cos_cached = None
        self.sin_cached = None

    def forward(self, x, seq_len):
        if seq_len > self.seq_len_cached or self.cos_cached.device != x.device:
            self.seq_len_cached = seq_len
            t = torch.arange(seq_len, device=x.device).type_as(self.inv_freq)
            freqs = torch.einsum("i,j->ij", t, self.inv_freq)
            emb = freqs.repeat_interleave(2, dim=-1)
            self.cos_cached = emb.cos()[None, None, :, :]
            self.sin_cached = emb.sin()[None, None, :, :]
        return self.cos_cached[:, :, :seq_len].to(x.dtype), self.sin_cached[:, :, :seq_len].to(x.dtype)


class RotarySelfAttention(nn.Module):
    """Encoder self-attention with rotary position embeddings (RoFormer)."""

    def __init__(self, hidden_size=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = hidden_size // num_heads
        self.dropout = dropout
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.rotary = Rotary(self.head_dim)

    def forward(self, hidden_states, attention_mask=None):
        """attention_mask: (batch, seq), 1 for tokens, 0 for padding."""
        b, n, c = hidden_states.shape
        q = self.query(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k = self.key(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        v = self.value(hidden_states).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)

        cos, sin = self.rotary(q, n)
        q = q * cos + rotate_half(q) * sin
        k = k * cos + rotate_half(k) * sin

        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        out = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, dropout_p=self.dropout if self.training else 0.0
        )
        return self.dense(out.transpose(1, 2).reshape(b, n, c))
