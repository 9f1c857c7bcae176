import torch
import torch.nn as nn
import torch.nn.functional as F


class PreviousWindowAttention(nn.Module):
    """Attention of each position over the ``window`` positions strictly before it.

    Used by the next-event head, whose inputs already contain the event at position t, so t itself has
    to stay hidden. The first position has no history and attends to a learned null key/value, which is
    visible from everywhere.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.q = nn.Linear(dim, dim)
        self.kv = nn.Linear(dim, 2 * dim)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)
        self.out = nn.Linear(dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q = self.q(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        null_k, null_v = self.null_kv[:, None].expand(2, b, -1, -1, -1)
        k = torch.cat([null_k, k], dim=2)
        v = torch.cat([null_v, v], dim=2)

        t = torch.arange(n, device=x.device)
        lag = t[:, None] - t[None, :]
        visible = (lag >= 1) & (lag <= self.window)
        visible = F.pad(visible, (1, 0), value=True)

        y = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.out(y.transpose(1, 2).reshape(b, n, d))
