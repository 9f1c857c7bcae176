import torch
import torch.nn as nn


class TriangleAttention(nn.Module):
    """Triangle self attention on the pair representation (AlphaFold 2, algorithms 13 and 14).

    Args:
        z: [B, N, N, C] pair representation
        mask: [B, N, N], 1 for valid pairs
    Returns:
        the update for ``z``, same shape; the caller adds it.
    """

    def __init__(self, c_in: int = 32, c_hidden: int = 8, no_heads: int = 4, starting: bool = False, inf: float = 1e9):
        super().__init__()
        self.no_heads = no_heads
        self.c_hidden = c_hidden
        self.starting = starting
        self.inf = inf
        self.layer_norm = nn.LayerNorm(c_in)
        self.linear_b = nn.Linear(c_in, no_heads, bias=False)
        self.linear_q = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_in, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_in, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_in)

    def _heads(self, t):
        # [B, I, J, H * c] -> [B, I, H, J, c]
        return t.view(*t.shape[:-1], self.no_heads, self.c_hidden).transpose(2, 3)

    def forward(self, z: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        if not self.starting:
            z = z.transpose(1, 2)
            mask = mask.transpose(1, 2)

        z = self.layer_norm(z)
        mask_bias = (self.inf * (mask - 1))[:, :, None, None, :]
        # [B, J, K, H] -> [B, 1, H, J, K]
        triangle_bias = self.linear_b(z).permute(0, 3, 1, 2).unsqueeze(1)

        q = self._heads(self.linear_q(z)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(z))
        v = self._heads(self.linear_v(z))
        a = torch.matmul(q, k.transpose(-1, -2)) + mask_bias + triangle_bias
        o = torch.matmul(a.softmax(dim=-1), v).transpose(2, 3).flatten(-2)

        o = o * torch.sigmoid(self.linear_g(z))
        return self.linear_o(o)
