import torch
import torch.nn as nn


class SigmoidAttention(nn.Module):
    """Bidirectional sigmoid attention (Ramapuram et al., 2024).

    Each weight is sigmoid(q.k / sqrt(d) - log n), n being the number of keys that can be seen. The
    weights of a row are independent of one another and do not sum to one.

    Args:
        dim: model width
        num_heads: number of heads
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_norm = nn.LayerNorm(dim)
        self.out_proj = nn.Linear(dim, dim)

    def forward(self, x, key_mask=None):
        """key_mask: (batch, seq) bool, True for tokens that exist."""
        b, n, c = x.shape
        q, k, v = self.in_proj(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)

        logits = torch.matmul(q, k.transpose(-1, -2)) / self.head_dim ** 0.5
        if key_mask is None:
            count = torch.full((b,), n, device=x.device)
        else:
            count = key_mask.sum(dim=-1).clamp(min=1)
        logits = logits - count.to(logits.dtype).log().view(b, 1, 1, 1)
        if key_mask is not None:
            logits = logits.masked_fill(~key_mask[:, None, None, :], float("-inf"))

        weights = torch.sigmoid(logits)
        y = torch.matmul(weights, v).transpose(1, 2).reshape(b, n, c)
        return self.out_proj(self.out_norm(y))
