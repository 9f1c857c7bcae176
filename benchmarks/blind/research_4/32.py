import torch
import torch.nn as nn


class QueryStreamAttention(nn.Module):
    """Autoregressive layer which predicts x[t] from x[0..t-1] *at position t*, without shifting the targets.

    As in the query stream of XLNet, queries are made of positions alone and the mask is strict: the diagonal is
    hidden too, since position t must not see its own content. A learned null slot, visible to everyone, gives the
    first position something to attend to. For the same reason there is no residual from ``x``.

    Args:
        dim: width.
        num_heads: heads.
        max_len: longest sequence.
    """

    def __init__(self, dim=96, num_heads=4, max_len=256):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.pos = nn.Parameter(torch.randn(max_len, dim) * 0.02)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)
        self.q_proj = nn.Linear(dim, dim)
        self.k_proj = nn.Linear(dim, dim)
        self.v_proj = nn.Linear(dim, dim)
        self.o_proj = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)

    def _heads(self, t):
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(-3, -2)

    def forward(self, x):
        B, T, C = x.shape
        pos = self.pos[:T]
        g = pos.expand(B, T, C)
        h = x + pos

        q = self._heads(self.q_proj(g))
        k = self._heads(self.k_proj(h))
        v = self._heads(self.v_proj(h))
        null_k, null_v = self.null_kv.unsqueeze(1).expand(2, B, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        # column 0 is the null slot, column j + 1 holds x[j]
        visible = torch.ones(T, T + 1, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-1, -2)) / self.head_dim**0.5
        scores = scores.masked_fill(~visible, float("-inf"))
        out = (scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(B, T, C)
        return self.norm(g + self.o_proj(out))
