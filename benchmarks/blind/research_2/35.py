import torch
import torch.nn as nn


def rotate_half(x):
    """Rotates half the hidden dims of the input."""
    x1 = x[..., : x.shape[-1] // 2]
    x2 = x[..., x.shape[-1] // 2:]
    return torch.cat((-x2, x1), dim=-1)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, max_position_embeddings=2048, base=10000):
        super().__init__()
        inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
        t = torch.arange(max_position_embeddings).float()
        freqs = torch.einsum("i,j->ij", t, inv_freq)
        emb = torch.repeat_interleave(freqs, 2, dim=-1)
        self.register_buffer("cos_cached", emb.cos(), persistent=False)
        self.register_buffer("sin_cached", emb.sin(), persistent=False)

    def forward(self, seq_len):
        return self.cos_cached[:seq_len], self.sin_cached[:seq_len]


class NeoXAttention(nn.Module):
    """GPT-NeoX causal self-attention. The first ``rotary_pct`` of every head is rotated, the rest passes through."""

    def __init__(self, hidden_size=128, num_attention_heads=4, rotary_pct=0.5, max_position_embeddings=2048,
                 rotary_emb_base=10000):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.rotary_ndims = int(self.head_size * rotary_pct)
        self.rotary_emb = RotaryEmbedding(self.rotary_ndims, max_position_embeddings, rotary_emb_base)
        self.norm_factor = self.head_size ** -0.5
        self.query_key_value = nn.Linear(hidden_size, 3 * hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        causal = torch.tril(torch.ones((max_position_embeddings, max_position_embeddings), dtype=torch.bool))
        self.register_buffer("bias", causal.view(1, 1, max_position_embeddings, max_position_embeddings),
                             persistent=False)

    def forward(self, hidden_states):
        bsz, seq_len, hidden = hidden_states.shape
        # [batch, seq_len, num_heads, 3 * head_size]
        qkv = self.query_key_value(hidden_states)
        qkv = qkv.view(bsz, seq_len, self.num_attention_heads, 3 * self.head_size)
        query, key, value = (t.transpose(1, 2) for t in qkv.split(self.head_size, dim=-1))

        query_rot, query_pass = query[..., : self.rotary_ndims], query[..., self.rotary_ndims:]
        key_rot, key_pass = key[..., : self.rotary_ndims], key[..., self.rotary_ndims:]
        cos, sin = self.rotary_emb(seq_len)
        query_rot = query_rot * cos + rotate_half(query_rot) * sin
        key_rot = key_rot * cos + rotate_half(key_rot) * sin
        query = torch.cat((query_rot, query_pass), dim=-1)
        key = torch.cat((key_rot, key_pass), dim=-1)

        attn_scores = torch.matmul(query, key.transpose(-1, -2)) * self.norm_factor
        causal_mask = self.bias[:, :, :seq_len, :seq_len]
        attn_scores = torch.where(causal_mask, attn_scores, torch.finfo(attn_scores.dtype).min)
        attn_weights = nn.functional.softmax(attn_scores, dim=-1)
        attn_output = torch.matmul(attn_weights, value)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, seq_len, hidden)
        return self.dense(attn_output)
