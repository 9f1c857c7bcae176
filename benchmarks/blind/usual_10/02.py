import torch
import torch.nn as nn


class MuAttention(nn.Module):
    """Causal multi-head attention in the maximal update parametrization.

    Under muP queries and keys become correlated during training, so that q.k grows like
    head_dim rather than sqrt(head_dim). The logits are therefore multiplied with
    ``alpha / head_dim``. ``alpha = sqrt(base_head_dim)`` makes a model with
    ``head_dim == base_head_dim`` identical to the standard parametrization.
    """

    def __init__(self, dim: int = 128, num_heads: int = 4, base_head_dim: int = 16):
        super().__init__()
        if dim % num_heads:
            raise ValueError(f"dim={dim} is not divisible by num_heads={num_heads}")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.attn_mult = base_head_dim ** 0.5 / self.head_dim
        self.wq = nn.Linear(dim, dim, bias=False)
        self.wk = nn.Linear(dim, dim, bias=False)
        self.wv = nn.Linear(dim, dim, bias=False)
        self.wo = nn.Linear(dim, dim, bias=False)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        return t.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self._heads(self.wq(x)), self._heads(self.wk(x)), self._heads(self.wv(x))
        y = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.attn_mult
        )
        return self.wo(y.transpose(1, 2).flatten(2))
