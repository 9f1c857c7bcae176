import torch
import torch.nn as nn
import torch.nn.functional as F


class RMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


class DecoderBlock(nn.Module):
    def __init__(self, dim, num_heads, is_local, window):
        super().__init__()
        self.num_heads = num_heads
        self.is_local = is_local
        self.window = window
        self.norm1 = RMSNorm(dim)
        self.norm2 = RMSNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.o = nn.Linear(dim, dim, bias=False)
        self.up = nn.Linear(dim, 4 * dim, bias=False)
        self.gate = nn.Linear(dim, 4 * dim, bias=False)
        self.down = nn.Linear(4 * dim, dim, bias=False)

    def _mask(self, t, device):
        pos = torch.arange(t, device=device)
        distance = pos[:, None] - pos[None, :]
        if self.is_local:
            return distance.abs() < self.window
        return distance >= 0

    def forward(self, x):
        b, t, d = x.shape
        h = self.norm1(x)
        q, k, v = self.qkv(h).view(b, t, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(q, k, v, attn_mask=self._mask(t, x.device))
        x = x + self.o(h.transpose(1, 2).reshape(b, t, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class AlternatingDecoder(nn.Module):
    """Decoder-only language model in which local and global layers take turns.

    Local layers see the last ``window`` tokens, the current one included. Every
    ``global_every``-th layer sees the whole prefix.
    """

    def __init__(self, vocab_size=128, dim=64, num_heads=4, num_layers=4, window=4, global_every=2, max_len=256):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, dim)
        self.pos = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(
            [DecoderBlock(dim, num_heads, (i + 1) % global_every != 0, window) for i in range(num_layers)]
        )
        self.norm = RMSNorm(dim)
        self.lm_head = nn.Linear(dim, vocab_size, bias=False)

    def forward(self, input_ids):
        positions = torch.arange(input_ids.size(1), device=input_ids.device)
        x = self.tok(input_ids) + self.pos(positions)
        for layer in self.layers:
            x = layer(x)
        return self.lm_head(self.norm(x))
