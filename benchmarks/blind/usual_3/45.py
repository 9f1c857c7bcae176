import torch
import torch.nn.functional as F
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class RotaryEmbedding(nn.Module):
    def __init__(self, dim, base=10000.0):
        super().__init__()
        self.register_buffer(
            "inv_freq", 1.0 / (base ** (torch.arange(0, dim, 2).float() / dim)), persistent=False
        )

    def forward(self, seq_len):
        t = torch.arange(seq_len, device=self.inv_freq.device).float()
        emb = torch.outer(t, self.inv_freq).repeat(1, 2)
        return emb.cos(), emb.sin()


def apply_rope(x, cos, sin):
    half = x.shape[-1] // 2
    rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos + rotated * sin


class MultiHeadLatentAttention(nn.Module):
    """Multi-head latent attention (DeepSeek-V2).

    Keys and values are rebuilt from a compressed latent. The positions live in a separate
    decoupled rotary part: ``qk_rope_dim`` dimensions of each query head and one rotary key
    that all heads share.
    """

    def __init__(self, dim=128, num_heads=4, q_lora_rank=48, kv_lora_rank=32,
                 qk_nope_dim=16, qk_rope_dim=8, v_head_dim=16):
        super().__init__()
        self.num_heads = num_heads
        self.kv_lora_rank = kv_lora_rank
        self.qk_nope_dim = qk_nope_dim
        self.qk_rope_dim = qk_rope_dim
        self.qk_head_dim = qk_nope_dim + qk_rope_dim
        self.v_head_dim = v_head_dim
        self.softmax_scale = self.qk_head_dim ** -0.5

        self.wq_a = nn.Linear(dim, q_lora_rank, bias=False)
        self.q_norm = RMSNorm(q_lora_rank)
        self.wq_b = nn.Linear(q_lora_rank, num_heads * self.qk_head_dim, bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, num_heads * (qk_nope_dim + v_head_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_head_dim, dim, bias=False)
        self.rotary = RotaryEmbedding(qk_rope_dim)

    def forward(self, x):
        bsz, seqlen, _ = x.shape
        cos, sin = self.rotary(seqlen)

        q = self.wq_b(self.q_norm(self.wq_a(x)))
        q = q.view(bsz, seqlen, self.num_heads, self.qk_head_dim).transpose(1, 2)
        q_nope, q_pe = q.split([self.qk_nope_dim, self.qk_rope_dim], dim=-1)
        q_pe = apply_rope(q_pe, cos, sin)

        c_kv, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.qk_rope_dim], dim=-1)
        k_pe = k_pe.unsqueeze(1).expand(-1, self.num_heads, -1, -1)
        kv = self.wkv_b(self.kv_norm(c_kv))
        kv = kv.view(bsz, seqlen, self.num_heads, self.qk_nope_dim + self.v_head_dim).transpose(1, 2)
        k_nope, v = kv.split([self.qk_nope_dim, self.v_head_dim], dim=-1)

        q = torch.cat([q_nope, q_pe], dim=-1)
        k = torch.cat([k_nope, k_pe], dim=-1)
        scores = torch.matmul(q, k.transpose(-1, -2)) * self.softmax_scale
        causal = torch.full((seqlen, seqlen), float("-inf"), device=x.device).triu(1)
        probs = F.softmax(scores + causal, dim=-1)

        out = torch.matmul(probs, v).transpose(1, 2).reshape(bsz, seqlen, -1)
        return self.wo(out)
