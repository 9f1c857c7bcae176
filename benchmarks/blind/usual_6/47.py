import math
from typing import Optional, Tuple

import torch
import torch.nn as nn


class AbsorbedMLA(nn.Module):
    """Multi-head latent attention in its decoding form.

    Per-head keys and values are never built. The key up-projection is applied to the
    query and the value up-projection to the attended latent, so that all of the heads
    attend to one latent per token, plus one shared rotary key. The scale is that of the
    full key, 1/sqrt(d_nope + d_rope), not of the latent.
    """

    def __init__(self, dim=96, n_heads=6, d_latent=24, d_nope=16, d_rope=8, d_value=16, theta=10000.0):
        super().__init__()
        self.h, self.d_latent, self.d_nope, self.d_rope, self.d_value = n_heads, d_latent, d_nope, d_rope, d_value
        self.w_q = nn.Linear(dim, n_heads * (d_nope + d_rope), bias=False)
        self.w_dkv = nn.Linear(dim, d_latent, bias=False)
        self.w_kr = nn.Linear(dim, d_rope, bias=False)
        self.latent_norm = nn.LayerNorm(d_latent, bias=False)
        self.w_uk = nn.Parameter(torch.randn(n_heads, d_nope, d_latent) * d_latent ** -0.5)
        self.w_uv = nn.Parameter(torch.randn(n_heads, d_value, d_latent) * d_latent ** -0.5)
        self.w_o = nn.Linear(n_heads * d_value, dim, bias=False)
        self.scale = 1 / math.sqrt(d_nope + d_rope)
        self.register_buffer(
            "inv_freq", theta ** (-torch.arange(0, d_rope, 2).float() / d_rope), persistent=False
        )

    def rotate(self, x: torch.Tensor, pos: torch.Tensor) -> torch.Tensor:
        # x: (b, t, ..., d_rope), complex multiplication over neighbouring pairs
        ang = pos.float()[:, None] * self.inv_freq
        phase = torch.polar(torch.ones_like(ang), ang)
        phase = phase.view(1, x.size(1), *([1] * (x.dim() - 3)), -1)
        z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(z * phase).flatten(-2).type_as(x)

    def forward(self, x: torch.Tensor, cache: Optional[Tuple[torch.Tensor, torch.Tensor]] = None):
        b, t, _ = x.shape
        past = cache[0].size(1) if cache is not None else 0
        pos = torch.arange(past, past + t, device=x.device)

        q = self.w_q(x).view(b, t, self.h, self.d_nope + self.d_rope)
        q_nope, q_rope = q.split((self.d_nope, self.d_rope), dim=-1)
        q_rope = self.rotate(q_rope, pos)

        c = self.latent_norm(self.w_dkv(x))
        kr = self.rotate(self.w_kr(x), pos)
        if cache is not None:
            c = torch.cat((cache[0], c), dim=1)
            kr = torch.cat((cache[1], kr), dim=1)

        q_lat = torch.einsum("bthn,hnc->bthc", q_nope, self.w_uk)
        s = torch.einsum("bthc,bsc->bhts", q_lat, c) + torch.einsum("bthr,bsr->bhts", q_rope, kr)
        future = torch.arange(past + t, device=x.device)[None, :] > pos[:, None]
        p = (s * self.scale).masked_fill(future, float("-inf")).softmax(dim=-1)

        o_lat = torch.einsum("bhts,bsc->bthc", p, c)
        o = torch.einsum("bthc,hvc->bthv", o_lat, self.w_uv).reshape(b, t, -1)
        return self.w_o(o), (c, kr)
