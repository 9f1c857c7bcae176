import torch
import torch.nn as nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


def rope_tables(n, dim, theta, device):
    inv = 1.0 / theta ** (torch.arange(0, dim, 2, device=device).float() / dim)
    ang = torch.arange(n, device=device).float()[:, None] * inv[None]
    return ang.cos(), ang.sin()


def rotate_pairs(x, cos, sin):
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def rotate_halves(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1)


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek-V2 attention: low-rank q and kv, decoupled rotary part shared over heads for keys."""

    def __init__(
        self,
        dim=64,
        num_heads=4,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        rope_theta=10000.0,
    ):
        super().__init__()
        self.h = num_heads
        self.nope, self.rope, self.vd = qk_nope_head_dim, qk_rope_head_dim, v_head_dim
        self.kv_rank = kv_lora_rank
        self.theta = rope_theta
        self.q_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.q_b = nn.Linear(q_lora_rank, num_heads * (self.nope + self.rope), bias=False)
        self.kv_a = nn.Linear(dim, kv_lora_rank + self.rope, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.kv_b = nn.Linear(kv_lora_rank, num_heads * (self.nope + self.vd), bias=False)
        self.o = nn.Linear(num_heads * self.vd, dim, bias=False)
        self.scale = (self.nope + self.rope) ** -0.5

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q_b(self.q_norm(self.q_a(x))).view(b, n, self.h, -1).transpose(1, 2)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)

        latent, k_pe = self.kv_a(x).split([self.kv_rank, self.rope], dim=-1)
        kv = self.kv_b(self.kv_norm(latent)).view(b, n, self.h, -1).transpose(1, 2)
        k_nope, v = kv.split([self.nope, self.vd], dim=-1)

        cos, sin = rope_tables(n, self.rope, self.theta, x.device)
        q_pe = rotate_pairs(q_pe, cos, sin)
        k_pe = rotate_halves(k_pe.unsqueeze(1), cos, sin)

        q = torch.cat([q_nope, q_pe], dim=-1)
        k = torch.cat([k_nope, k_pe.expand(-1, self.h, -1, -1)], dim=-1)
        scores = q @ k.transpose(-1, -2) * self.scale
        mask = torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1)
        attn = scores.masked_fill(mask, float("-inf")).softmax(-1)
        return self.o((attn @ v).transpose(1, 2).flatten(2))
