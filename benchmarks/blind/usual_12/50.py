import torch
import torch.nn as nn
import torch.nn.functional as F


class PastOnlyWindowAttention(nn.Module):
    """Attention to the ``window`` tokens strictly before the current one.

    Position i sees i - window, ..., i - 1 and not itself: the layer predicts token i from its
    past, and its own content reaches the output by the residual of the caller. A learned null
    key and value, visible from everywhere, take the attention of the first position.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.window = window
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_k = nn.Linear(dim, dim, bias=False)
        self.to_v = nn.Linear(dim, dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.null_kv = nn.Parameter(torch.randn(2, num_heads, 1, self.head_dim) * 0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = (
            proj(x).view(b, n, self.num_heads, self.head_dim).transpose(1, 2)
            for proj in (self.to_q, self.to_k, self.to_v)
        )
        null_k, null_v = self.null_kv.unsqueeze(1).expand(-1, b, -1, -1, -1)
        k = torch.cat((null_k, k), dim=2)
        v = torch.cat((null_v, v), dim=2)

        pos = torch.arange(n, device=x.device)
        dist = pos[:, None] - pos[None, :]
        mask = (dist > 0) & (dist <= self.window)
        mask = F.pad(mask, (1, 0), value=True)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.to_out(y.transpose(1, 2).reshape(b, n, c))
