import torch
from torch import nn


class TiledCausalAttention(nn.Module):
    """Exact causal attention in tiles, FlashAttention style.

    Query tiles are processed one by one; key tiles that lie fully in the future are skipped,
    the last one is masked. Neither length has to be a multiple of the tile size.
    """

    def __init__(self, dim=64, num_heads=4, q_tile=8, k_tile=4):
        super().__init__()
        self.h = num_heads
        self.d = dim // num_heads
        self.q_tile = q_tile
        self.k_tile = k_tile
        self.to_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def _tile(self, q, k, v, q0):
        b, h, m, d = q.shape
        q = q * d ** -0.5
        q_idx = torch.arange(q0, q0 + m, device=q.device)
        o = torch.zeros_like(q)
        l = q.new_zeros(b, h, m, 1)
        mx = q.new_full((b, h, m, 1), -1e30)
        last = q0 + m
        for k0 in range(0, last, self.k_tile):
            k1 = min(k0 + self.k_tile, last)
            s = q @ k[:, :, k0:k1].transpose(-1, -2)
            k_idx = torch.arange(k0, k1, device=q.device)
            hidden = k_idx[None, :] > q_idx[:, None]
            s = s.masked_fill(hidden, float("-inf"))
            mx_new = torch.maximum(mx, s.amax(-1, keepdim=True))
            p = (s - mx_new).exp()
            alpha = (mx - mx_new).exp()
            l = l * alpha + p.sum(-1, keepdim=True)
            o = o * alpha + p @ v[:, :, k0:k1]
            mx = mx_new
        return o / l

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = self.to_qkv(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        tiles = [self._tile(q[:, :, i:i + self.q_tile], k, v, i) for i in range(0, n, self.q_tile)]
        out = torch.cat(tiles, dim=2)
        return self.to_out(out.transpose(1, 2).reshape(b, n, c))
