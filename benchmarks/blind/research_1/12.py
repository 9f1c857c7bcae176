from typing import Optional

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class CrossAttention(nn.Module):
    """Attention of text tokens over audio features. While decoding, the projected audio is kept
    so that it is not recomputed at every step."""

    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)
        self._kv = None

    def _split(self, t: Tensor) -> Tensor:
        return t.view(t.shape[0], t.shape[1], self.n_head, -1).transpose(1, 2)

    def _project_audio(self, xa: Tensor):
        if self.training:
            self._kv = None
            return self._split(self.key(xa)), self._split(self.value(xa))
        if self._kv is None or self._kv[0].shape[0] != xa.shape[0]:
            self._kv = (self._split(self.key(xa)), self._split(self.value(xa)))
        return self._kv

    def forward(self, x: Tensor, xa: Tensor) -> Tensor:
        q = self._split(self.query(x))
        k, v = self._project_audio(xa)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


class CausalAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.qkv = nn.Linear(n_state, 3 * n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor) -> Tensor:
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_head, C // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(B, T, C))


class SpeechDecoderLayer(nn.Module):
    def __init__(self, n_state: int = 64, n_head: int = 4, mlp_ratio: int = 4):
        super().__init__()
        self.attn = CausalAttention(n_state, n_head)
        self.attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = CrossAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(
            nn.Linear(n_state, n_state * mlp_ratio), nn.GELU(), nn.Linear(n_state * mlp_ratio, n_state))
        self.mlp_ln = nn.LayerNorm(n_state)

    def forward(self, x: Tensor, xa: Tensor) -> Tensor:
        """
        x : (batch, text length, n_state)
        xa : (batch, audio length, n_state), the encoder output
        """
        x = x + self.attn(self.attn_ln(x))
        x = x + self.cross_attn(self.cross_attn_ln(x), xa)
        x = x + self.mlp(self.mlp_ln(x))
        return x
