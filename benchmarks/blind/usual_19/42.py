import torch
import torch.nn as nn
import torch.nn.functional as F


class WhisperStyleAttention(nn.Module):
    """Multi-head attention for an audio encoder/decoder; cross-attention when `xa` is given.

    Scaled dot-product attention, softmax(q k^T / sqrt(d)) v; `causal` applies to self-attention.
    """

    def __init__(self, n_state: int = 64, n_head: int = 4, causal: bool = False):
        super().__init__()
        self.n_head = n_head
        self.head_dim = n_state // n_head
        self.scale = self.head_dim ** -0.5
        self.causal = causal
        self.query = nn.Linear(n_state, n_state)
        self.key = nn.Linear(n_state, n_state, bias=False)
        self.value = nn.Linear(n_state, n_state)
        self.out = nn.Linear(n_state, n_state)

    def _heads(self, x):
        return x.view(*x.shape[:2], self.n_head, self.head_dim).permute(0, 2, 1, 3)

    def forward(self, x, xa=None):
        source = x if xa is None else xa
        q = self._heads(self.query(x) * self.scale)
        k = self._heads(self.key(source))
        v = self._heads(self.value(source))

        a = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal and xa is None)
        return self.out(a.permute(0, 2, 1, 3).flatten(start_dim=2))
