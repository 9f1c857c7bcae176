import torch
import torch.nn as nn
import torch.nn.functional as F


class ParallelBlock(nn.Module):
    """Pre-norm decoder block with attention and MLP in parallel and a single norm,
    y = x + Attn(LN(x)) + MLP(LN(x)), as in GPT-J and PaLM."""

    def __init__(self, dim: int = 64, num_heads: int = 4, mlp_ratio: int = 4, resid_pdrop: float = 0.0):
        super().__init__()
        self.n_head = num_heads
        self.head_dim = dim // num_heads
        self.ln = nn.LayerNorm(dim)
        # q, k, v and the MLP input come out of one matmul
        self.fused = nn.Linear(dim, 3 * dim + mlp_ratio * dim, bias=False)
        self.fused_dims = (dim, dim, dim, mlp_ratio * dim)
        self.attn_out = nn.Linear(dim, dim, bias=False)
        self.ff_out = nn.Linear(mlp_ratio * dim, dim, bias=False)
        self.drop = nn.Dropout(resid_pdrop)

    def forward(self, x):
        B, T, C = x.shape
        hidden = self.ln(x)
        q, k, v, ff = self.fused(hidden).split(self.fused_dims, dim=-1)
        q, k, v = (t.view(B, T, self.n_head, self.head_dim).transpose(1, 2) for t in (q, k, v))
        attn = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attn = self.attn_out(attn.transpose(1, 2).reshape(B, T, C))
        mlp = self.ff_out(F.gelu(ff))
        return hidden + self.drop(attn) + self.drop(mlp)
