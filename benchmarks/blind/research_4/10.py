from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class AttentionBase(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def split(self, t: Tensor) -> Tensor:
        return t.unflatten(-1, (self.n_head, -1)).transpose(1, 2)

    def merge(self, t: Tensor) -> Tensor:
        return self.out(t.transpose(1, 2).flatten(2))


class CausalSelfAttention(AttentionBase):
    def forward(self, x: Tensor, past: Optional[Tuple[Tensor, Tensor]] = None):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if past is not None:
            k = torch.cat([past[0], k], dim=2)
            v = torch.cat([past[1], v], dim=2)
        n_q, n_k = q.size(2), k.size(2)
        visible = torch.ones(n_q, n_k, dtype=torch.bool, device=x.device).tril(n_k - n_q)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask=visible)), (k, v)


class AudioCrossAttention(AttentionBase):
    """Attention on the encoder output, whose keys and values are projected once per decoding run."""

    def __init__(self, n_state: int, n_head: int):
        super().__init__(n_state, n_head)
        self._kv: Optional[Tuple[Tensor, Tensor]] = None

    def forward(self, x: Tensor, xa: Tensor) -> Tensor:
        q = self.split(self.query(x))
        if self.training:
            k, v = self.split(self.key(xa)), self.split(self.value(xa))
        else:
            if self._kv is None:
                self._kv = (self.split(self.key(xa)), self.split(self.value(xa)))
            k, v = self._kv
        return self.merge(F.scaled_dot_product_attention(q, k, v))


class SpeechDecoderLayer(nn.Module):
    """Decoder layer of a Whisper-like model.

    ``forward(x, xa, past)`` takes the text states ``[B, T, C]``, the encoder output ``[B, S, C]`` and the
    self-attention cache of the previous tokens; it returns the new states and the new cache.
    """

    def __init__(self, n_state: int = 256, n_head: int = 4):
        super().__init__()
        self.attn_ln = nn.LayerNorm(n_state)
        self.attn = CausalSelfAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = AudioCrossAttention(n_state, n_head)
        self.mlp_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))

    def forward(self, x: Tensor, xa: Tensor, past: Optional[Tuple[Tensor, Tensor]] = None):
        y, present = self.attn(self.attn_ln(x), past)
        x = x + y
        x = x + self.cross_attn(self.cross_attn_ln(x), xa)
        x = x + self.mlp(self.mlp_ln(x))
        return x, present
