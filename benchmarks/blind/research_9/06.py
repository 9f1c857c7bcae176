from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class DecoderAttention(nn.Module):
    def __init__(self, n_state: int, n_head: int):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)
        self.cache_k: Optional[torch.Tensor] = None
        self.cache_v: Optional[torch.Tensor] = None

    def _split(self, x):
        return x.view(x.shape[0], x.shape[1], self.n_head, -1).transpose(1, 2)

    def forward(self, x, xa=None, incremental: bool = False):
        q = self._split(self.query(x))
        if xa is not None:
            if incremental and self.cache_k is not None:
                k, v = self.cache_k, self.cache_v
            else:
                k, v = self._split(self.key(xa)), self._split(self.value(xa))
                if incremental:
                    self.cache_k, self.cache_v = k, v
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            k, v = self._split(self.key(x)), self._split(self.value(x))
            past = 0
            if incremental:
                if self.cache_k is not None:
                    past = self.cache_k.shape[2]
                    k = torch.cat([self.cache_k, k], dim=2)
                    v = torch.cat([self.cache_v, v], dim=2)
                self.cache_k, self.cache_v = k, v
            t, s = q.shape[2], k.shape[2]
            allowed = torch.ones(t, s, dtype=torch.bool, device=x.device).tril(diagonal=past)
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
        return self.out(y.transpose(1, 2).flatten(2))


class SpeechDecoderLayer(nn.Module):
    """One decoder layer of a Whisper-like model.

    Call ``start()`` before every new utterance; then feed the text tokens, all at once or step by
    step, with ``incremental=True`` together with the encoder output ``xa`` of the utterance.
    """

    def __init__(self, n_state: int = 64, n_head: int = 4):
        super().__init__()
        self.attn_ln = nn.LayerNorm(n_state)
        self.attn = DecoderAttention(n_state, n_head)
        self.cross_attn_ln = nn.LayerNorm(n_state)
        self.cross_attn = DecoderAttention(n_state, n_head)
        self.mlp_ln = nn.LayerNorm(n_state)
        self.mlp = nn.Sequential(nn.Linear(n_state, 4 * n_state), nn.GELU(), nn.Linear(4 * n_state, n_state))

    def start(self):
        self.attn.cache_k = None
        self.attn.cache_v = None

    def forward(self, x: torch.Tensor, xa: torch.Tensor, incremental: bool = False) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x), incremental=incremental)
        x = x + self.cross_attn(self.cross_attn_ln(x), xa, incremental=incremental)
        return x + self.mlp(self.mlp_ln(x))
