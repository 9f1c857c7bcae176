import torch
from torch import Tensor, nn


class SigmoidAttention(nn.Module):
    """Attention with an elementwise sigmoid in place of the softmax.

    The logits get the offset ``-log(n)``, n being the number of keys a row may look at, so that at
    initialisation the weights of a row add up to about one (they are not normalised otherwise).

    Parameters
    ----------
    dim, heads
        width and number of heads
    qk_norm
        LayerNorm on queries and keys, which this kind of attention needs for stable training

    ``mask`` is [B, N] with 1 for real tokens and 0 for padding.
    """

    def __init__(self, dim: int = 64, heads: int = 4, qk_norm: bool = True):
        super().__init__()
        assert dim % heads == 0
        self.heads = heads
        d = dim // heads
        self.scale = d ** -0.5
        self.w_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.q_norm = nn.LayerNorm(d) if qk_norm else nn.Identity()
        self.k_norm = nn.LayerNorm(d) if qk_norm else nn.Identity()
        self.w_o = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, mask: Tensor = None) -> Tensor:
        B, N, D = x.shape
        q, k, v = self.w_qkv(x).view(B, N, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.q_norm(q), self.k_norm(k)
        s = torch.einsum("bhid,bhjd->bhij", q, k) * self.scale
        if mask is None:
            offset = torch.full((B, 1, 1, 1), float(N), device=x.device, dtype=s.dtype).log()
            a = torch.sigmoid(s - offset)
        else:
            keep = mask.bool()
            offset = keep.sum(-1).clamp(min=1).to(s.dtype).log().view(B, 1, 1, 1)
            a = torch.sigmoid(s - offset) * keep.view(B, 1, 1, N).to(s.dtype)
        y = torch.einsum("bhij,bhjd->bihd", a, v).reshape(B, N, D)
        return self.w_o(y)
