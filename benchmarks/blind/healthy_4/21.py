from typing import Dict, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MultiHeadAttention(nn.Module):
    """Whisper-style attention: scale split over q and k, no bias on the key projection."""

    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, k: Tensor, v: Tensor, mask: Optional[Tensor] = None) -> Tensor:
        """x: raw input, projected here; k, v: already projected (batch, length, n_state)."""
        q = self.query(x)
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(n_batch, n_ctx, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(n_batch, k.shape[1], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(n_batch, v.shape[1], self.n_head, -1).permute(0, 2, 1, 3)

        qk = (q @ k).float()
        if mask is not None:
            qk = qk + mask
        w = F.softmax(qk, dim=-1).to(q.dtype)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


class ResidualDecoderBlock(nn.Module):
    """Decoder block that keeps its keys and values in a dictionary given by the caller.

    ``cache`` starts as an empty dict for every new utterance. Self-attention entries grow with each
    call; cross-attention entries are projected from ``xa`` once and then reused.
    """

    def __init__(self, n_state: int = 256, n_head: int = 4):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        n_mlp = n_state * 4
        self.mlp = nn.Sequential(nn.Linear(n_state, n_mlp), nn.GELU(), nn.Linear(n_mlp, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, xa: Tensor, cache: Optional[Dict[str, Tensor]] = None) -> Tensor:
        h = self.attn_ln(x)
        k, v = self.attn.key(h), self.attn.value(h)
        if cache is not None:
            if "self_k" in cache:
                k = torch.cat([cache["self_k"], k], dim=1)
                v = torch.cat([cache["self_v"], v], dim=1)
            cache["self_k"], cache["self_v"] = k, v

        n_q, n_k = x.shape[1], k.shape[1]
        mask = torch.full((n_q, n_k), float("-inf"), device=x.device).triu_(1 + n_k - n_q)
        x = x + self.attn(h, k, v, mask=mask)

        if cache is None:
            xk, xv = self.cross_attn.key(xa), self.cross_attn.value(xa)
        else:
            if "cross_k" not in cache:
                cache["cross_k"], cache["cross_v"] = self.cross_attn.key(xa), self.cross_attn.value(xa)
            xk, xv = cache["cross_k"], cache["cross_v"]
        x = x + self.cross_attn(self.cross_attn_ln(x), xk, xv)

        x = x + self.mlp(self.mlp_ln(x))
        return x
