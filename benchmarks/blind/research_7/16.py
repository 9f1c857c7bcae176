from typing import Dict, Optional

import torch
from torch import nn


class MultiHeadAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def attend(self, q, k, v, mask=None):
        B, T, D = q.shape
        # the scale is split evenly over q and k
        scale = (D // self.n_head) ** -0.25
        q = q.view(B, T, self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(B, k.size(1), self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(B, v.size(1), self.n_head, -1).permute(0, 2, 1, 3)
        qk = (q @ k).float()
        if mask is not None:
            qk = qk + mask
        w = qk.softmax(dim=-1).to(q.dtype)
        return self.out((w @ v).permute(0, 2, 1, 3).flatten(start_dim=2))


class SpeechDecoderBlock(nn.Module):
    """Decoder block: cached causal self-attention, cross-attention on audio, MLP.

    ``cache`` is a dict owned by the caller, one per utterance and block. It is filled in
    place. The audio keys and values are computed on the first step only.
    """

    def __init__(self, n_state: int = 64, n_head: int = 4):
        super().__init__()
        self.attn = MultiHeadAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = MultiHeadAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: torch.Tensor, xa: torch.Tensor, cache: Optional[Dict[str, torch.Tensor]] = None):
        h = self.attn_ln(x)
        q, k, v = self.attn.query(h), self.attn.key(h), self.attn.value(h)
        if cache is not None:
            if "k" in cache:
                k = torch.cat([cache["k"], k], dim=1)
                v = torch.cat([cache["v"], v], dim=1)
            cache["k"], cache["v"] = k, v
        T, S = q.size(1), k.size(1)
        mask = torch.full((T, S), float("-inf"), device=x.device).triu(1 + S - T)
        x = x + self.attn.attend(q, k, v, mask)

        h = self.cross_attn_ln(x)
        if cache is not None and "xk" in cache:
            xk, xv = cache["xk"], cache["xv"]
        else:
            xk, xv = self.cross_attn.key(xa), self.cross_attn.value(xa)
            if cache is not None:
                cache["xk"], cache["xv"] = xk, xv
        x = x + self.cross_attn.attend(self.cross_attn.query(h), xk, xv)

        return x + self.mlp(self.mlp_ln(x))
