import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Causal block-local attention: each block of `block` tokens sees itself and the block before.

    Any sequence length is accepted; the input is padded on the right to a multiple of the block and
    cut again at the end.
    """

    def __init__(self, dim: int = 64, heads: int = 4, block: int = 4):
        super().__init__()
        self.heads = heads
        self.block = block
        self.scale = (dim // heads) ** -0.5
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    @staticmethod
    def look_back(t):
        # (b, h, blocks, w, d) -> (b, h, blocks, 2w, d)
        prev = F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat((prev, t), dim=3)

    def forward(self, x):
        b, n, c = x.shape
        w = self.block
        pad = (-n) % w
        x = F.pad(x, (0, 0, 0, pad))
        blocks = x.shape[1] // w
        q, k, v = self.to_qkv(x).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, blocks, w, self.heads, -1).permute(0, 3, 1, 2, 4) for t in (q, k, v))
        k, v = self.look_back(k), self.look_back(v)

        sim = torch.einsum("bhnid,bhnjd->bhnij", q, k) * self.scale
        i = torch.arange(w, device=x.device)[:, None] + w
        j = torch.arange(2 * w, device=x.device)[None, :]
        sim = sim.masked_fill(j > i, torch.finfo(sim.dtype).min)
        attn = sim.softmax(dim=-1)
        out = torch.einsum("bhnij,bhnjd->bhnid", attn, v)
        out = out.permute(0, 2, 3, 1, 4).reshape(b, blocks * w, c)
        return self.to_out(out[:, :n])
