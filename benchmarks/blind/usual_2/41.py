import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn


class EfficientAttention(nn.Module):
    """Efficient attention (Shen et al., 2021), linear in the number of tokens, bidirectional.

    Queries are normalised over the channels and keys over the tokens; each is a softmax of its
    own, so the product of both is already a distribution over the tokens and no further softmax
    or scale is applied.
    """

    def __init__(self, dim: int, heads: int = 4, dim_head: int = 32):
        super().__init__()
        inner = heads * dim_head
        self.heads = heads
        self.to_qkv = nn.Linear(dim, inner * 3, bias=False)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        """x: (b, n, dim); mask: bool (b, n), True for tokens that take part."""
        q, k, v = rearrange(self.to_qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.heads)

        q = F.softmax(q, dim=-1)
        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], torch.finfo(k.dtype).min)
        k = F.softmax(k, dim=-2)

        context = torch.einsum("bhnd,bhne->bhde", k, v)
        out = torch.einsum("bhnd,bhde->bhne", q, context)
        return self.to_out(rearrange(out, "b h n e -> b n (h e)"))
