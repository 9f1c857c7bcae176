import torch
import torch.nn as nn
import torch.nn.functional as F


def rope(x, positions, theta=10000.0):
    """x: (B, T, H, D), rotated in pairs of neighbouring channels."""
    inv_freq = 1.0 / theta ** (torch.arange(0, x.shape[-1], 2, device=x.device).float() / x.shape[-1])
    angle = torch.outer(positions.float(), inv_freq)
    freqs = torch.polar(torch.ones_like(angle), angle)[None, :, None, :]
    xc = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(xc * freqs).flatten(3).type_as(x)


class AbsorbedMLA(nn.Module):
    """Multi-head latent attention in the "absorbed" form.

    The up-projection of the keys is applied to the queries, that of the values to the result, so
    that all the heads attend directly to the shared latent (as in multi-query attention) and per-head keys
    and values never exist. The scale is that of the un-absorbed head, nope + rope channels.
    The cache holds (normalised latent, rotated shared key).
    """

    def __init__(self, dim=64, n_heads=4, kv_lora_rank=32, nope_dim=16, rope_dim=8, v_dim=12):
        super().__init__()
        self.n_heads = n_heads
        self.kv_lora_rank = kv_lora_rank
        self.nope_dim, self.rope_dim, self.v_dim = nope_dim, rope_dim, v_dim
        self.softmax_scale = (nope_dim + rope_dim) ** -0.5
        self.wq = nn.Linear(dim, n_heads * (nope_dim + rope_dim), bias=False)
        self.wkv_a = nn.Linear(dim, kv_lora_rank + rope_dim, bias=False)
        self.kv_norm = nn.LayerNorm(kv_lora_rank)
        self.wkv_b = nn.Linear(kv_lora_rank, n_heads * (nope_dim + v_dim), bias=False)
        self.wo = nn.Linear(n_heads * v_dim, dim, bias=False)

    def forward(self, x, cache=None):
        B, T, _ = x.shape
        start = cache[0].shape[1] if cache is not None else 0
        positions = torch.arange(start, start + T, device=x.device)

        q = self.wq(x).view(B, T, self.n_heads, -1)
        q_nope, q_pe = q.split([self.nope_dim, self.rope_dim], dim=-1)
        q_pe = rope(q_pe, positions)

        latent, k_pe = self.wkv_a(x).split([self.kv_lora_rank, self.rope_dim], dim=-1)
        latent = self.kv_norm(latent)
        k_pe = rope(k_pe.unsqueeze(2), positions).squeeze(2)
        if cache is not None:
            latent = torch.cat((cache[0], latent), dim=1)
            k_pe = torch.cat((cache[1], k_pe), dim=1)
        S = latent.shape[1]

        w = self.wkv_b.weight.view(self.n_heads, self.nope_dim + self.v_dim, self.kv_lora_rank)
        w_k, w_v = w.split([self.nope_dim, self.v_dim], dim=1)
        q_latent = torch.einsum("bthd,hdc->bthc", q_nope, w_k)
        scores = (
            torch.einsum("bthc,bsc->bhts", q_latent, latent) + torch.einsum("bthr,bsr->bhts", q_pe, k_pe)
        ) * self.softmax_scale

        visible = torch.ones(T, S, dtype=torch.bool, device=x.device).tril(S - T)
        probs = scores.masked_fill(~visible, float("-inf")).softmax(dim=-1)

        ctx = torch.einsum("bhts,bsc->bthc", probs, latent)
        out = torch.einsum("bthc,hdc->bthd", ctx, w_v)
        return self.wo(out.reshape(B, T, -1)), (latent, k_pe)
