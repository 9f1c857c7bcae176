import torch
import torch.nn as nn


class DynamicNTKAttention(nn.Module):
    """Causal self-attention, RoPE with dynamic NTK scaling.

    Up to ``max_position_embeddings`` tokens the plain base is used. Longer inputs get a
    larger base, computed from the length of that input alone; the module keeps no state
    between calls.
    """

    def __init__(self, dim=64, num_heads=4, max_position_embeddings=128, rope_base=10000.0, scaling_factor=2.0):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.max_pos = max_position_embeddings
        self.base = rope_base
        self.scaling_factor = scaling_factor
        self.qkv_proj = nn.Linear(dim, 3 * dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)

    def cos_sin(self, length, device, dtype):
        d = self.head_dim
        base = self.base
        if length > self.max_pos:
            grow = self.scaling_factor * length / self.max_pos - (self.scaling_factor - 1)
            base = base * grow ** (d / (d - 2))
        inv_freq = 1.0 / (base ** (torch.arange(0, d, 2, device=device, dtype=torch.float32) / d))
        freqs = torch.outer(torch.arange(length, device=device, dtype=torch.float32), inv_freq)
        return freqs.cos().to(dtype), freqs.sin().to(dtype)

    @staticmethod
    def rotate(x, cos, sin):
        x1, x2 = x.chunk(2, dim=-1)
        return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin), dim=-1)

    def forward(self, hidden_states):
        bsz, q_len, dim = hidden_states.shape
        qkv = self.qkv_proj(hidden_states).view(bsz, q_len, 3, self.num_heads, self.head_dim)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)

        cos, sin = self.cos_sin(q_len, q.device, q.dtype)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)

        weights = torch.matmul(q, k.transpose(2, 3)) * self.head_dim ** -0.5
        causal = torch.full((q_len, q_len), torch.finfo(weights.dtype).min, device=q.device, dtype=weights.dtype)
        weights = weights + causal.triu(1)
        weights = torch.softmax(weights, dim=-1, dtype=torch.float32).to(q.dtype)
        out = torch.matmul(weights, v)
        return self.o_proj(out.transpose(1, 2).reshape(bsz, q_len, dim))
