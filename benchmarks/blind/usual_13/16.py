import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return y.type_as(x) * self.weight


def rope(x, pos, theta=10000.0):
    """Interleaved rotary embedding, x: (b, t, h, d), pos: (t,)."""
    d = x.shape[-1]
    freq = theta ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    ang = (pos.float()[:, None] * freq)[None, :, None, :]
    a, b = x.float()[..., 0::2], x.float()[..., 1::2]
    out = torch.stack((a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()), dim=-1)
    return out.flatten(-2).type_as(x)


class MultiHeadLatentAttention(nn.Module):
    """DeepSeek MLA. Only the normed latent and the shared rotary key are cached."""

    def __init__(self, dim=128, num_heads=4, kv_lora_rank=32, qk_nope_dim=24, qk_rope_dim=8, v_dim=16):
        super().__init__()
        self.num_heads = num_heads
        self.qk_nope_dim = qk_nope_dim
        self.qk_rope_dim = qk_rope_dim
        self.v_dim = v_dim
        self.rank = kv_lora_rank
        self.scale = (qk_nope_dim + qk_rope_dim) ** -0.5
        self.wq = nn.Linear(dim, num_heads * (qk_nope_dim + qk_rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + qk_rope_dim, bias=False)
        self.kv_norm = RMSNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, num_heads * (qk_nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(num_heads * v_dim, dim, bias=False)

    def forward(self, x, cache=None):
        """Returns the output and the new cache (latent, k_pe)."""
        b, t, _ = x.shape
        past = 0 if cache is None else cache[0].size(1)
        pos = torch.arange(past, past + t, device=x.device)

        q = self.wq(x).view(b, t, self.num_heads, -1)
        q_nope, q_pe = q.split([self.qk_nope_dim, self.qk_rope_dim], dim=-1)
        q_pe = rope(q_pe, pos)

        latent, k_pe = self.wkv_a(x).split([self.rank, self.qk_rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = rope(k_pe.unsqueeze(2), pos).squeeze(2)
        if cache is not None:
            latent = torch.cat([cache[0], latent], dim=1)
            k_pe = torch.cat([cache[1], k_pe], dim=1)

        w = self.wkv_b.weight.view(self.num_heads, self.qk_nope_dim + self.v_dim, self.rank)
        w_k, w_v = w.split([self.qk_nope_dim, self.v_dim], dim=1)

        # absorbed form: queries move into the latent space, keys are never expanded
        q_lat = torch.einsum("bthd,hdr->bthr", q_nope, w_k)
        scores = torch.einsum("bthr,bsr->bhts", q_lat, latent)
        scores = (scores + torch.einsum("bthd,bsd->bhts", q_pe, k_pe)) * self.scale
        s = latent.size(1)
        hidden = torch.ones(t, s, dtype=torch.bool, device=x.device).triu(past + 1)
        probs = F.softmax(scores.masked_fill(hidden, float("-inf")).float(), dim=-1).type_as(x)

        ctx = torch.einsum("bhts,bsr->bthr", probs, latent)
        out = torch.einsum("bthr,hvr->bthv", ctx, w_v)
        return self.wo(out.flatten(2)), (latent, k_pe)
