import torch
import torch.nn as nn
import torch.nn.functional as F


class ResPostNormBlock(nn.Module):
    """ViT block with "res-post-norm": x + norm(f(x)).

    The norm sits on the branch, after attention / MLP, and the residual stream itself is
    never normalised (Swin V2). The gains of the norms start at ``init_values``, which takes
    the part of LayerScale.
    """

    def __init__(self, dim=192, num_heads=3, mlp_ratio=4.0, init_values=0.1, drop_path=0.0):
        super().__init__()
        self.num_heads = num_heads
        self.drop_path = drop_path
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.norm1 = nn.LayerNorm(dim)
        hidden = int(dim * mlp_ratio)
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.norm2 = nn.LayerNorm(dim)
        nn.init.constant_(self.norm1.weight, init_values)
        nn.init.constant_(self.norm2.weight, init_values)

    def _drop(self, branch):
        if self.drop_path == 0.0 or not self.training:
            return branch
        keep = 1.0 - self.drop_path
        sample = branch.new_empty(branch.size(0), 1, 1).bernoulli_(keep)
        return branch * sample / keep

    def attention(self, x):
        B, N, C = x.shape
        q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(B, N, C))

    def forward(self, x):
        x = x + self._drop(self.norm1(self.attention(x)))
        x = x + self._drop(self.norm2(self.fc2(F.gelu(self.fc1(x)))))
        return x
