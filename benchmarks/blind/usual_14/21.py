import torch
import torch.nn as nn
import torch.nn.functional as F


class SlidingWindowAttention(nn.Module):
    """Causal local attention in the manner of Mistral: token i sees tokens i - window + 1 ... i."""

    def __init__(self, dim: int = 64, num_heads: int = 4, window: int = 4):
        super().__init__()
        self.num_heads = num_heads
        self.window = window
        self.wqkv = nn.Linear(dim, 3 * dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def make_mask(self, n: int, device) -> torch.Tensor:
        idx = torch.arange(n, device=device)
        dist = idx[:, None] - idx[None, :]
        return dist.abs() < self.window

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, n, c = x.shape
        q, k, v = self.wqkv(x).chunk(3, dim=-1)
        q, k, v = [t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in (q, k, v)]
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=self.make_mask(n, x.device))
        return self.wo(out.transpose(1, 2).reshape(b, n, c))
