from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    """Decoder cross-attention for speech to text.

    The keys and values of the audio features are computed once and kept over the decoding steps.

    x: (batch, n_text, n_state), xa: (batch, n_audio, n_state)
    """

    def __init__(self, n_state: int = 64, n_head: int = 4):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)
        self._k: Optional[torch.Tensor] = None
        self._v: Optional[torch.Tensor] = None

    def _heads(self, t):
        return t.view(t.shape[0], t.shape[1], self.n_head, -1).transpose(1, 2)

    def forward(self, x: torch.Tensor, xa: torch.Tensor) -> torch.Tensor:
        if self.training:
            k, v = self._heads(self.key(xa)), self._heads(self.value(xa))
        else:
            if self._k is None or self._k.shape[0] != xa.shape[0] or self._k.shape[2] != xa.shape[1]:
                self._k = self._heads(self.key(xa)).detach()
                self._v = self._heads(self.value(xa)).detach()
            k, v = self._k, self._v
        q = self._heads(self.query(x))
        wv = F.scaled_dot_product_attention(q, k, v)
        return self.out(wv.transpose(1, 2).flatten(2))
