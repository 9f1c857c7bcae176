import torch
import torch.nn as nn
import torch.nn.functional as F


class PartialRotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def forward(self, seq_len):
        t = torch.arange(seq_len, device=self.inv_freq.device).type_as(self.inv_freq)
        freqs = torch.einsum("i,j->ij", t, self.inv_freq)
        emb = freqs.repeat_interleave(2, dim=-1)
        return emb.cos()[None, None], emb.sin()[None, None]


def rotate_half(x):
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


def apply_rotary_pos_emb(q, k, cos, sin):
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


class ParallelDecoderLayer(nn.Module):
    """GPT-NeoX layer: x + attn(ln1(x)) + mlp(ln2(x)), rotary on a part of each head."""

    def __init__(self, hidden_size: int = 64, num_heads: int = 4, rotary_pct: float = 0.5):
        super().__init__()
        self.num_heads = num_heads
        self.head_size = hidden_size // num_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        self.input_layernorm = nn.LayerNorm(hidden_size)
        self.post_attention_layernorm = nn.LayerNorm(hidden_size)
        self.rotary_emb = PartialRotaryEmbedding(self.rotary_ndims)
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dense_h_to_4h = nn.Linear(hidden_size, 4 * hidden_size)
        self.dense_4h_to_h = nn.Linear(4 * hidden_size, hidden_size)

    def attention(self, x):
        B, T, D = x.shape
        qkv = self.query_key_value(x).view(B, T, self.num_heads, 3 * self.head_size)
        q, k, v = qkv.transpose(1, 2).chunk(3, dim=-1)

        n = self.rotary_ndims
        cos, sin = self.rotary_emb(T)
        q_rot, k_rot = apply_rotary_pos_emb(q[..., :n], k[..., :n], cos, sin)
        q = torch.cat((q_rot, q[..., n:]), dim=-1)
        k = torch.cat((k_rot, k[..., n:]), dim=-1)

        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.dense(y.transpose(1, 2).reshape(B, T, D))

    def mlp(self, x):
        return self.dense_4h_to_h(F.gelu(self.dense_h_to_4h(x)))

    def forward(self, x):
        return x + self.attention(self.input_layernorm(x)) + self.mlp(self.post_attention_layernorm(x))
