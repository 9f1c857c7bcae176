import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def precompute_freqs(dim, max_len, base=10000.0):
    inv_freq = 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim))
    freqs = torch.outer(torch.arange(max_len).float(), inv_freq)
    return freqs.cos(), freqs.sin()


def apply_rotary_emb(x, cos, sin):
    # x: (batch, seq, heads, dim)
    cos, sin = cos[None, :, None, :], sin[None, :, None, :]
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class MLA(nn.Module):
    """
    Multi-head latent attention (DeepSeek-V2), training path without cache.

    The query and the key of a head have a content part (nope) and a decoupled rotary part; the rotary key is
    shared by all heads. score = (q_nope . k_nope + q_rope . k_rope) / sqrt(nope + rope)
    """

    def __init__(
        self,
        dim=64,
        num_heads=4,
        q_lora_rank=32,
        kv_lora_rank=32,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        max_len=256,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_head_dim = qk_nope_head_dim
        self.qk_rope_head_dim = qk_rope_head_dim
        self.v_head_dim = v_head_dim
        self.qk_head_dim = qk_nope_head_dim + qk_rope_head_dim

        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, num_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_head_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, num_heads * (qk_nope_head_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_head_dim, dim, bias=False)

        cos, sin = precompute_freqs(qk_rope_head_dim, max_len)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        cos, sin = self.cos[:seqlen], self.sin[:seqlen]

        q = self.wq_b(self.q_norm(self.wq_a(x))).view(bsz, seqlen, self.num_heads, self.qk_head_dim)
        q_nope, q_pe = torch.split(q, [self.qk_nope_head_dim, self.qk_rope_head_dim], dim=-1)
        q_pe = apply_rotary_emb(q_pe, cos, sin)
        q = torch.cat([q_nope, q_pe], dim=-1)

        kv, k_pe = torch.split(self.wkv_a(x), [self.kv_lora_rank, self.qk_rope_head_dim], dim=-1)
        k_pe = apply_rotary_emb(k_pe.unsqueeze(2), cos, sin)
        kv = self.wkv_b(self.kv_norm(kv))
        kv = kv.view(bsz, seqlen, self.num_heads, self.qk_nope_head_dim + self.v_head_dim)
        k_nope, v = torch.split(kv, [self.qk_nope_head_dim, self.v_head_dim], dim=-1)
        k = torch.cat([k_pe.expand(-1, -1, self.num_heads, -1), k_nope], dim=-1)

        scores = torch.einsum("bshd,bthd->bhst", q, k) * self.qk_head_dim ** -0.5
        mask = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu_(1)
        scores = F.softmax(scores + mask, dim=-1)
        out = torch.einsum("bhst,bthd->bshd", scores, v)
        return self.wo(out.flatten(2))
