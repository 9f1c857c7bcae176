import torch
import torch.nn as nn


class TriangleAttentionEndingNode(nn.Module):
    """Triangular gated self-attention around the ending node (Suppl. Algorithm 14).

    Edge (i, j) attends over the edges (k, j) that share its end, with a bias
    read from the third side (k, i) of the triangle. Returns the update; the
    caller adds it to the pair representation.

    Args:
        c_z: channels of the pair representation
        c_hidden: channels per head
        no_heads: number of heads
    """

    def __init__(self, c_z: int = 32, c_hidden: int = 8, no_heads: int = 4, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.inf = inf

        self.layer_norm = nn.LayerNorm(c_z)
        self.linear_b = nn.Linear(c_z, no_heads, bias=False)
        self.linear_q = nn.Linear(c_z, c_hidden * no_heads, bias=False)
        self.linear_k = nn.Linear(c_z, c_hidden * no_heads, bias=False)
        self.linear_v = nn.Linear(c_z, c_hidden * no_heads, bias=False)
        self.linear_g = nn.Linear(c_z, c_hidden * no_heads)
        self.linear_o = nn.Linear(c_hidden * no_heads, c_z)

    def _heads(self, t: torch.Tensor) -> torch.Tensor:
        # [*, N, N, H * C] -> [*, N, H, N, C]
        t = t.view(*t.shape[:-1], self.no_heads, self.c_hidden)
        return t.transpose(-2, -3)

    def forward(self, z: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        """
        Args:
            z: [B, N, N, C_z] pair representation
            mask: [B, N, N], 1 for edges that exist
        Returns:
            [B, N, N, C_z]
        """
        if mask is None:
            mask = z.new_ones(z.shape[:-1])

        z = z.transpose(-2, -3)
        mask = mask.transpose(-1, -2)

        z = self.layer_norm(z)

        # [B, N, 1, 1, N]
        mask_bias = (self.inf * (mask - 1))[..., :, None, None, :]
        # [B, 1, H, N, N]
        triangle_bias = self.linear_b(z).permute(0, 3, 1, 2).unsqueeze(1)

        q = self._heads(self.linear_q(z)) * self.c_hidden ** -0.5
        k = self._heads(self.linear_k(z))
        v = self._heads(self.linear_v(z))

        a = torch.matmul(q, k.transpose(-1, -2))
        a = a + mask_bias + triangle_bias
        a = torch.softmax(a, dim=-1)

        o = torch.matmul(a, v).transpose(-2, -3)
        g = torch.sigmoid(self.linear_g(z)).view(*z.shape[:-1], self.no_heads, self.c_hidden)
        o = (o * g).flatten(start_dim=-2)

        return self.linear_o(o)
