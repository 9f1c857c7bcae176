import torch
import torch.nn as nn
import torch.nn.functional as F


class XCA(nn.Module):
    """
    Cross-covariance attention (XCiT): the channels of a head attend to each other, so the
    attention map is (head_dim x head_dim) and the cost is linear in the number of tokens.
    Queries and keys are l2-normalised along the token axis and a learned temperature per
    head takes the place of the fixed scale.
    """

    def __init__(self, dim=64, num_heads=8, qkv_bias=False, attn_drop=0.0, proj_drop=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.temperature = nn.Parameter(torch.ones(num_heads, 1, 1))
        self.qkv = nn.Linear(dim, dim * 3, bias=qkv_bias)
        self.attn_drop = nn.Dropout(attn_drop)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)

    def forward(self, x):
        B, N, C = x.shape
        # 3, B, heads, head_dim, N
        qkv = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 4, 1)
        q, k, v = qkv.unbind(0)

        q = F.normalize(q, dim=-1)
        k = F.normalize(k, dim=-1)

        attn = (q @ k.transpose(-2, -1)) * self.temperature
        attn = attn.softmax(dim=-1)
        attn = self.attn_drop(attn)

        x = (attn @ v).permute(0, 3, 1, 2).reshape(B, N, C)
        x = self.proj_drop(self.proj(x))
        return x

    @torch.jit.ignore
    def no_weight_decay(self):
        return {"temperature"}
