from typing import Optional

import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttention(nn.Module):
    """Decoder-to-encoder attention of the speech decoder.

    During decoding the encoder output is the same for every step, so its keys and
    values are projected once per utterance.

    x:  [B, T_dec, D]   decoder states (one step or many)
    xa: [B, T_enc, D]   encoder output
    """

    def __init__(self, d_model: int = 64, n_head: int = 4):
        super().__init__()
        assert d_model % n_head == 0
        self.n_head = n_head
        self.d_head = d_model // n_head
        self.q_proj = nn.Linear(d_model, d_model)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model)
        self.out_proj = nn.Linear(d_model, d_model)
        self._k: Optional[torch.Tensor] = None
        self._v: Optional[torch.Tensor] = None

    def _shape(self, t: torch.Tensor) -> torch.Tensor:
        b, n, _ = t.shape
        return t.view(b, n, self.n_head, self.d_head).transpose(1, 2)

    def _encoder_kv(self, xa: torch.Tensor):
        if self.training:
            return self._shape(self.k_proj(xa)), self._shape(self.v_proj(xa))

        stale = (
            self._k is None
            or self._k.size(0) != xa.size(0)
            or self._k.size(2) != xa.size(1)
            or self._k.device != xa.device
        )
        if stale:
            self._k = self._shape(self.k_proj(xa))
            self._v = self._shape(self.v_proj(xa))
        return self._k, self._v

    def forward(self, x: torch.Tensor, xa: torch.Tensor,
                enc_lengths: Optional[torch.Tensor] = None) -> torch.Tensor:
        b, t, d = x.shape
        q = self._shape(self.q_proj(x))
        k, v = self._encoder_kv(xa)

        mask = None
        if enc_lengths is not None:
            frames = torch.arange(xa.size(1), device=xa.device)
            mask = (frames[None, :] < enc_lengths[:, None])[:, None, None, :]

        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).reshape(b, t, d))
