from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class AbsorbedMLA(nn.Module):
    """Latent attention in the absorbed form (DeepSeek-V2, inference).

    Only the latent c_kv (kv_rank) and the shared rotary key (rope_dim) are kept. The up-projection of the
    keys is folded into the query and that of the values into the output, so scores are dot
    products of size kv_rank + rope_dim. They are still scaled by the head size of the unabsorbed form.

    forward(x, cache) returns (output, new_cache); cache is (batch, past, kv_rank + rope_dim).
    """

    def __init__(self, dim=64, num_heads=4, kv_rank=32, nope_dim=16, rope_dim=8, v_dim=16, theta=10000.0):
        super().__init__()
        self.h, self.rank, self.nope, self.rope, self.vd = num_heads, kv_rank, nope_dim, rope_dim, v_dim
        self.q_proj = nn.Linear(dim, num_heads * (nope_dim + rope_dim), bias=False)
        self.kv_down = nn.Linear(dim, kv_rank + rope_dim, bias=False)
        self.kv_norm = nn.LayerNorm(kv_rank)
        self.kv_up = nn.Linear(kv_rank, num_heads * (nope_dim + v_dim), bias=False)
        self.o_proj = nn.Linear(num_heads * v_dim, dim, bias=False)
        self.scale = (nope_dim + rope_dim) ** -0.5
        inv_freq = theta ** (-torch.arange(0, rope_dim, 2).float() / rope_dim)
        self.register_buffer("inv_freq", inv_freq, persistent=False)

    def _rotate(self, x, pos):
        # x: (batch, len, ..., rope_dim)
        ang = torch.outer(pos.float(), self.inv_freq)
        ang = ang.view(1, pos.numel(), *([1] * (x.dim() - 3)), -1)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * ang.cos() - b * ang.sin(), a * ang.sin() + b * ang.cos()), dim=-1).flatten(-2)

    def forward(self, x: torch.Tensor, cache: Optional[torch.Tensor] = None):
        b, n, _ = x.shape
        past = 0 if cache is None else cache.shape[1]
        pos = torch.arange(past, past + n, device=x.device)

        q = self.q_proj(x).view(b, n, self.h, self.nope + self.rope)
        q_nope, q_pe = q.split([self.nope, self.rope], dim=-1)
        c_kv, k_pe = self.kv_down(x).split([self.rank, self.rope], dim=-1)
        new = torch.cat([self.kv_norm(c_kv), self._rotate(k_pe, pos)], dim=-1)
        cache = new if cache is None else torch.cat([cache, new], dim=1)

        w_uk, w_uv = self.kv_up.weight.view(self.h, self.nope + self.vd, self.rank).split([self.nope, self.vd], dim=1)
        q_lat = torch.einsum("bnhd,hdr->bnhr", q_nope, w_uk)
        query = torch.cat([q_lat, self._rotate(q_pe, pos)], dim=-1)

        scores = torch.einsum("bnhr,bmr->bhnm", query, cache) * self.scale
        hidden = torch.arange(cache.shape[1], device=x.device)[None, :] > pos[:, None]
        probs = F.softmax(scores.masked_fill(hidden, float("-inf")).float(), dim=-1).type_as(x)
        o_lat = torch.einsum("bhnm,bmr->bnhr", probs, cache[..., : self.rank])
        out = torch.einsum("bnhr,hdr->bnhd", o_lat, w_uv)
        return self.o_proj(out.reshape(b, n, -1)), cache
