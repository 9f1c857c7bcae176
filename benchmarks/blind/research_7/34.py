import torch
import torch.nn as nn


class TriangleAttentionEndingNode(nn.Module):
    """Triangular gated self-attention around the ending node (AlphaFold 2, Algorithm 14).

        a_ijk = softmax_k(q_ij . k_kj / sqrt(c) + b_ki),   o_ij = g_ij * sum_k a_ijk v_kj

    It is the starting-node algorithm applied to the transposed pair representation.

    z: [B, N, N, c_z], mask: [B, N, N] with 1 for valid pairs.
    """

    def __init__(self, c_z: int = 32, c_hidden: int = 8, no_heads: int = 4, inf: float = 1e9):
        super().__init__()
        self.h, self.c, self.inf = no_heads, c_hidden, inf
        inner = no_heads * c_hidden
        self.layer_norm = nn.LayerNorm(c_z)
        self.to_q = nn.Linear(c_z, inner, bias=False)
        self.to_k = nn.Linear(c_z, inner, bias=False)
        self.to_v = nn.Linear(c_z, inner, bias=False)
        self.to_bias = nn.Linear(c_z, no_heads, bias=False)
        self.to_gate = nn.Linear(c_z, inner)
        self.to_out = nn.Linear(inner, c_z)

    def forward(self, z, mask=None):
        if mask is None:
            mask = z.new_ones(z.shape[:-1])
        x = self.layer_norm(z).transpose(1, 2)
        mask = mask.transpose(1, 2)

        q = self.to_q(x).unflatten(-1, (self.h, self.c)) * self.c ** -0.5
        k = self.to_k(x).unflatten(-1, (self.h, self.c))
        v = self.to_v(x).unflatten(-1, (self.h, self.c))

        logits = torch.einsum("brihc,brjhc->brhij", q, k)
        logits = logits + self.to_bias(x).permute(0, 3, 1, 2)[:, None]
        logits = logits + self.inf * (mask[:, :, None, None, :] - 1)
        weights = logits.softmax(dim=-1)

        out = torch.einsum("brhij,brjhc->brihc", weights, v).flatten(-2)
        out = self.to_out(out * torch.sigmoid(self.to_gate(x)))
        return z + out.transpose(1, 2)
