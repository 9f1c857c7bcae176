import torch
import torch.nn as nn
import torch.nn.functional as F


class XCA(nn.Module):
    """Cross-covariance attention (XCiT, El-Nouby et al. 2021).

    A transposed attention: the softmax matrix is (head_dim x head_dim), the channels of a head attend to
    each other and the sum runs over the tokens. Queries and keys are normalised along the tokens,
    and a learned temperature takes the place of the scale.
    """

    def __init__(self, dim=64, num_heads=4, qkv_bias=True, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        # (3, B, heads, head_dim, N)
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 4, 1)
        q, k, v = qkv.unbind(0)

        q = F.normalize(q, p=2.0, dim=-1)
        k = F.normalize(k, p=2.0, dim=-1)
        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
        x = self.proj(x)
        return self.proj_drop(x)

    @torch.jit.ignore
    def no_weight_decay(self):
        return {"temperature"}
