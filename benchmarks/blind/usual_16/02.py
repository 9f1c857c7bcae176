from typing import Optional

import torch
from torch import Tensor, nn


class SpeechAttention(nn.Module):
    """Multi-head attention of the audio encoder / text decoder.

    q and k are both scaled by head_dim ** -0.25 before the product, which keeps the
    logits in range when running in half precision.
    The key projection carries no bias, a bias there cancels in the softmax.
    """

    def __init__(self, n_state: int = 64, n_head: int = 4):
        super().__init__()
        self.n_head = n_head
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def forward(self, x: Tensor, xa: Optional[Tensor] = None, mask: Optional[Tensor] = None):
        """
        x: (batch, n_ctx, n_state)
        xa: (batch, n_audio_ctx, n_state) for cross attention, otherwise None
        mask: (>=n_ctx, >=n_ctx) additive, -inf above the diagonal; self attention only
        """
        src = x if xa is None else xa
        q = self.query(x)
        k = self.key(src)
        v = self.value(src)
        wv, qk = self.qkv_attention(q, k, v, mask)
        return self.out(wv), qk

    def qkv_attention(self, q, k, v, mask=None):
        n_batch, n_ctx, n_state = q.shape
        scale = (n_state // self.n_head) ** -0.25
        q = q.view(*q.shape[:2], self.n_head, -1).permute(0, 2, 1, 3) * scale
        k = k.view(*k.shape[:2], self.n_head, -1).permute(0, 2, 3, 1) * scale
        v = v.view(*v.shape[:2], self.n_head, -1).permute(0, 2, 1, 3)

        qk = q @ k
        if mask is not None:
            qk = qk + mask[:n_ctx, :n_ctx]
        qk = qk.float()

        w = torch.softmax(qk, dim=-1).to(q.dtype)
        return (w @ v).permute(0, 2, 1, 3).flatten(start_dim=2), qk.detach()
