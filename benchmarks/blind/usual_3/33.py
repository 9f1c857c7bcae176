import torch
import torch.nn as nn
import torch.nn.functional as F


class EinsumAttention(nn.Module):
    """Bidirectional multi-head self attention written with einsum.

    One weight per projection of shape (model, heads, head_dim).
    """

    def __init__(self, dim: int = 64, num_heads: int = 4):
        super().__init__()
        head_dim = dim // num_heads
        self.scale = head_dim ** -0.5
        self.w_q = nn.Parameter(torch.empty(dim, num_heads, head_dim))
        self.w_k = nn.Parameter(torch.empty(dim, num_heads, head_dim))
        self.w_v = nn.Parameter(torch.empty(dim, num_heads, head_dim))
        self.w_o = nn.Parameter(torch.empty(num_heads, head_dim, dim))
        for w in (self.w_q, self.w_k, self.w_v, self.w_o):
            nn.init.normal_(w, std=dim ** -0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q = torch.einsum("btm,mhd->bhtd", x, self.w_q) * self.scale
        k = torch.einsum("btm,mhd->bhtd", x, self.w_k)
        v = torch.einsum("btm,mhd->bhtd", x, self.w_v)

        scores = torch.einsum("bhid,bhjd->bhij", q, k)
        attn = F.softmax(scores, dim=-1)
        ctx = torch.einsum("bhij,bhid->bhjd", attn, v)

        return torch.einsum("bhtd,hdm->btm", ctx, self.w_o)
