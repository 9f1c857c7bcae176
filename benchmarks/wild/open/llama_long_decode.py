"""With dynamic NTK scaling the cached keys stay rotated by the old base while the query uses the base of the longer sequence.

huggingface/transformers #25104 (2023)
https://github.com/huggingface/transformers/issues/25104
"""
import torch
import torch.nn as nn


def _build(rev):
    def rotate_half(x):
        x1, x2 = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2:]
        return torch.cat((-x2, x1), dim=-1)

    class LlamaDynamicNTKScalingRotaryEmbedding(nn.Module):
        def __init__(self, dim, max_position_embeddings=8, base=10000, scaling_factor=2.0):
            super().__init__()
            self.dim, self.base = dim, base
            self.max_position_embeddings, self.scaling_factor = max_position_embeddings, scaling_factor

        def forward(self, x, seq_len):
            base = self.base
            if seq_len > self.max_position_embeddings:
                base = base * ((self.scaling_factor * seq_len / self.max_position_embeddings)
                               - (self.scaling_factor - 1)) ** (self.dim / (self.dim - 2))
            inv_freq = 1.0 / (base ** (torch.arange(0, self.dim, 2, device=x.device).float() / self.dim))
            freqs = torch.outer(torch.arange(seq_len, device=x.device).float(), inv_freq)
            emb = torch.cat((freqs, freqs), dim=-1)
            return emb.cos().to(x.dtype), emb.sin().to(x.dtype)

    class LlamaAttention(nn.Module):
        """Causal self-attention with dynamic NTK rotary positions.

        forward(hidden_states, past_key_value=None): hidden_states (B, T, C); past_key_value as returned by an
        earlier call on the preceding tokens. Feeding a sequence in pieces is meant to give, for the last token,
        what feeding it whole gives. Returns (output, past_key_value).
        """

        def __init__(self, hidden_size=64, num_heads=4):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, hidden_size // num_heads
            self.q_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)
            self.rotary_emb = LlamaDynamicNTKScalingRotaryEmbedding(self.head_dim)

        def forward(self, hidden_states, past_key_value=None):
            bsz, q_len, _ = hidden_states.size()
            q, k, v = (p(hidden_states).view(bsz, q_len, self.num_heads, self.head_dim).transpose(1, 2)
                       for p in (self.q_proj, self.k_proj, self.v_proj))
            past = 0 if past_key_value is None else past_key_value[0].shape[2]
            cos, sin = self.rotary_emb(v, past + q_len)
            q = q * cos[past:] + rotate_half(q) * sin[past:]
            if rev == 1:
                k = k * cos[past:] + rotate_half(k) * sin[past:]
            if past_key_value is not None:
                k = torch.cat([past_key_value[0], k], dim=2)
                v = torch.cat([past_key_value[1], v], dim=2)
            past_key_value = (k, v)
            if rev != 1:
                k = k * cos + rotate_half(k) * sin
            attn = q @ k.transpose(2, 3) / self.head_dim ** 0.5
            mask = torch.ones(q_len, past + q_len, dtype=torch.bool, device=q.device).tril(past)
            attn = attn.masked_fill(~mask, torch.finfo(attn.dtype).min).softmax(-1)
            y = (attn @ v).transpose(1, 2).reshape(bsz, q_len, -1)
            return self.o_proj(y), past_key_value

    torch.manual_seed(0)
    return LlamaAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 6, 64),), {}
