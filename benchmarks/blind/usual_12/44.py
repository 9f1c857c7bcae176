import math

import torch
from torch import Tensor, nn


def locality_attention(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor, log_temp: Tensor) -> Tensor:
    """Multi-head attention with weights of shape (heads, dim, head_dim).

    A token does not attend to itself: the diagonal is masked, as in locality self-attention
    (Lee et al., "Vision Transformer for Small-Size Datasets").
    """
    q = torch.einsum("bnc,hcd->bhnd", x, wq)
    k = torch.einsum("bnc,hcd->bhnd", x, wk)
    v = torch.einsum("bnc,hcd->bhnd", x, wv)
    dots = torch.einsum("bhid,bhjd->bhij", q, k) * log_temp.exp()
    diagonal = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
    dots = dots.masked_fill(diagonal, -torch.finfo(dots.dtype).max)
    out = torch.einsum("bhij,bhjd->bhid", dots.softmax(dim=-1), v)
    return out.transpose(1, 2).flatten(2)


class LSA(nn.Module):
    """Locality self-attention with a learned temperature and without an output projection.

    The mixing of the heads is left to the first layer of the MLP that follows. Sequences must
    have at least two tokens.
    """

    def __init__(self, dim: int = 48, num_heads: int = 4):
        super().__init__()
        head_dim = dim // num_heads
        bound = math.sqrt(3.0 / dim)
        self.wq = nn.Parameter(torch.empty(num_heads, dim, head_dim).uniform_(-bound, bound))
        self.wk = nn.Parameter(torch.empty(num_heads, dim, head_dim).uniform_(-bound, bound))
        self.wv = nn.Parameter(torch.empty(num_heads, dim, head_dim).uniform_(-bound, bound))
        self.log_temp = nn.Parameter(torch.tensor(-0.5 * math.log(head_dim)))

    def forward(self, x: Tensor) -> Tensor:
        return locality_attention(x, self.wq, self.wk, self.wv, self.log_temp)
