import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid in the place of the softmax.

    Rows do not sum to one. The logits are shifted by ``-log(n)``, where n counts the keys that the query may see,
    so that at initialisation the total weight of a row is about one whatever the length (Ramapuram et al., 2024).

    Args:
        dim: model width.
        num_heads: number of heads.
        causal: whether a query is limited to itself and the past.
    """

    def __init__(self, dim=128, num_heads=4, causal=True, qk_norm=True):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.causal = causal
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(self.head_dim) if qk_norm else nn.Identity()
        self.wo = nn.Linear(dim, dim, bias=False)

    def forward(self, x, keep=None):
        """``keep``: optional bool [B, T], True where there is a token."""
        B, T, C = x.shape
        q, k, v = self.wqkv(x).view(B, T, 3, self.num_heads, self.head_dim).unbind(2)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(k).transpose(1, 2)
        v = v.transpose(1, 2)

        visible = torch.ones(T, T, dtype=torch.bool, device=x.device)
        if self.causal:
            visible = visible.tril()
        visible = visible[None, None]
        if keep is not None:
            visible = visible & keep[:, None, None, :]

        n = visible.sum(dim=-1, keepdim=True).clamp(min=1)
        logits = q @ k.transpose(-1, -2) * self.head_dim**-0.5 - torch.log(n.to(q.dtype))
        weights = torch.sigmoid(logits).masked_fill(~visible, 0.0)
        y = (weights @ v).transpose(1, 2).reshape(B, T, C)
        return self.wo(y)
