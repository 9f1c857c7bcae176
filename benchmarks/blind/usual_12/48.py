import math

import torch
from torch import nn


class BlockwiseCausalAttention(nn.Module):
    """FlashAttention in plain PyTorch, tiled over queries and keys.

    Log-sum-exp form: each key tile gives a normalised partial result and its log-sum-exp, and
    two partial results are merged with the weights sigmoid(lse_new - lse_old). Tiles above the
    diagonal are skipped; the tile on the diagonal comes first, so no partial row is empty.
    """

    def __init__(self, dim: int = 64, num_heads: int = 4, tile: int = 16):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.tile = tile
        self.w_in = nn.Linear(dim, 3 * dim, bias=False)
        self.w_out = nn.Linear(dim, dim, bias=False)

    def _tile(self, q, k, v, q0, k0):
        s = q @ k.transpose(-1, -2) / math.sqrt(self.head_dim)
        rows = torch.arange(q0, q0 + q.shape[-2], device=q.device)
        cols = torch.arange(k0, k0 + k.shape[-2], device=q.device)
        s = s.masked_fill(cols[None, :] > rows[:, None], float("-inf"))
        lse = torch.logsumexp(s, dim=-1, keepdim=True)
        return torch.exp(s - lse) @ v, lse

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.w_in(x).view(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        outs = []
        for q0 in range(0, n, self.tile):
            qt = q[:, :, q0 : q0 + self.tile]
            acc, lse = self._tile(qt, k[:, :, q0 : q0 + self.tile], v[:, :, q0 : q0 + self.tile], q0, q0)
            for k0 in range(0, q0, self.tile):
                new, new_lse = self._tile(
                    qt, k[:, :, k0 : k0 + self.tile], v[:, :, k0 : k0 + self.tile], q0, k0
                )
                acc = acc + torch.sigmoid(new_lse - lse) * (new - acc)
                lse = torch.logaddexp(lse, new_lse)
            outs.append(acc)
        y = torch.cat(outs, dim=2)
        return self.w_out(y.transpose(1, 2).reshape(b, n, c))
