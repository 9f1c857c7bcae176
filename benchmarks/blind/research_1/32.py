import torch
import torch.nn as nn


class TriangleAttention(nn.Module):
    """
    Triangular gated self-attention. With ``starting=True`` edge (i, j) attends to the edges (i, k)
    of the same start; with ``starting=False`` to the edges (k, j) of the same end, which is computed
    on the transposed pair matrix.

    x: [batch, n, n, c_in], mask: [batch, n, n] with 1 for valid pairs.
    """

    def __init__(self, c_in: int = 32, c_hidden: int = 8, no_heads: int = 4, starting: bool = False, inf: float = 1e9):
        super().__init__()
        self.c_hidden = c_hidden
        self.no_heads = no_heads
        self.starting = starting
        self.inf = inf

        self.layer_norm = nn.LayerNorm(c_in)
        self.linear = nn.Linear(c_in, no_heads, bias=False)
        self.to_qkv = nn.Linear(c_in, 3 * no_heads * c_hidden, bias=False)
        self.to_gate = nn.Linear(c_in, no_heads * c_hidden)
        self.to_out = nn.Linear(no_heads * c_hidden, c_in)

    def forward(self, x: torch.Tensor, mask: torch.Tensor = None) -> torch.Tensor:
        if mask is None:
            mask = x.new_ones(x.shape[:-1])
        if not self.starting:
            x = x.transpose(1, 2)
            mask = mask.transpose(1, 2)

        x = self.layer_norm(x)
        b, n, m, _ = x.shape

        q, k, v = self.to_qkv(x).view(b, n, m, 3, self.no_heads, self.c_hidden).permute(3, 0, 1, 4, 2, 5)
        scores = torch.matmul(q, k.transpose(-1, -2)) / self.c_hidden ** 0.5      # [b, n, h, m, m]

        mask_bias = (self.inf * (mask.to(x.dtype) - 1))[:, :, None, None, :]
        triangle_bias = self.linear(x).permute(0, 3, 1, 2).unsqueeze(1)           # [b, 1, h, m, m]
        scores = scores + mask_bias + triangle_bias

        o = torch.matmul(torch.softmax(scores, dim=-1), v)
        o = o.transpose(2, 3).reshape(b, n, m, self.no_heads * self.c_hidden)
        o = self.to_out(o * torch.sigmoid(self.to_gate(x)))

        if not self.starting:
            o = o.transpose(1, 2)
        return o
