import torch
import torch.nn as nn
import torch.nn.functional as F


class SeedPooling(nn.Module):
    """Pools a padded set into `num_seeds` vectors with learned seed queries.

    One projection serves as key and as value (shared K/V), and the pooled heads are concatenated
    without an output projection: the classifier that follows is linear and would absorb it.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, num_seeds: int = 2):
        super().__init__()
        assert dim % num_heads == 0
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm = nn.LayerNorm(dim)
        self.seeds = nn.Parameter(torch.randn(num_heads, num_seeds, self.head_dim))
        self.shared_kv = nn.Linear(dim, dim)

    def forward(self, x, valid=None):
        """x: (B, N, dim), valid: (B, N) bool with at least one True per row -> (B, num_seeds, dim)"""
        B, N, C = x.shape
        kv = self.shared_kv(self.norm(x)).view(B, N, self.num_heads, self.head_dim).transpose(1, 2)
        q = self.seeds.unsqueeze(0).expand(B, -1, -1, -1)
        mask = None if valid is None else valid[:, None, None, :]
        pooled = F.scaled_dot_product_attention(q, kv, kv, attn_mask=mask)
        return pooled.transpose(1, 2).reshape(B, -1, C)
