import torch
import torch.nn as nn


class RetrievedChunkCrossAttention(nn.Module):
    """Cross attention from a text chunk to the passages retrieved for it.

    Parameters
    ----------
    x : [B, T, D] states of the text
    retrieved : [B, K, R, D] encodings of the K passages with R tokens each
    retrieved_mask : bool [B, K, R], True for real passage tokens

    Returns x plus, for every text token, the attention-weighted passage information.
    """

    def __init__(self, dim=64, num_heads=4):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.norm = nn.LayerNorm(dim)
        self.norm_ctx = nn.LayerNorm(dim)
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, dim * 2, bias=False)
        self.to_out = nn.Linear(dim, dim)
        # rank of the passage in the result list
        self.rank_embedding = nn.Embedding(32, dim)

    def forward(self, x, retrieved, retrieved_mask=None):
        B, T, D = x.shape
        _, K, R, _ = retrieved.shape
        ctx = retrieved + self.rank_embedding.weight[:K].view(1, K, 1, D)
        ctx = self.norm_ctx(ctx).reshape(B, K * R, D)

        q = self.to_q(self.norm(x)).view(B, T, self.num_heads, self.head_dim)
        k, v = self.to_kv(ctx).chunk(2, dim=-1)
        k = k.reshape(B, K * R, self.num_heads, self.head_dim)
        v = v.reshape(B, K * R, self.num_heads, self.head_dim)

        sim = torch.einsum("bihd,bjhd->bhij", q, k) * self.head_dim ** -0.5
        if retrieved_mask is not None:
            keep = retrieved_mask.reshape(B, 1, 1, K * R)
            sim = sim.masked_fill(~keep, -1e9)
        attn = sim.softmax(dim=-2)

        out = torch.einsum("bhij,bjhd->bihd", attn, v).reshape(B, T, D)
        return x + self.to_out(out)
