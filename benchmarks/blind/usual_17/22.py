import torch
import torch.nn as nn
import torch.nn.functional as F


class LocalAttention(nn.Module):
    """Causal block-local attention: every query sees its own block and the block before it.

    The sequence is padded on the right to a multiple of ``block``.
    """

    def __init__(self, dim=64, num_heads=4, block=8):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.block = block
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.out_proj = nn.Linear(dim, dim, bias=False)

    def _blocks(self, t):
        # (B, H, N, D) -> (B, H, nb, w, D)
        B, H, N, D = t.shape
        return t.reshape(B, H, N // self.block, self.block, D)

    @staticmethod
    def _with_previous(t):
        prev = F.pad(t, (0, 0, 0, 0, 1, 0))[:, :, :-1]
        return torch.cat([prev, t], dim=3)

    def forward(self, x):
        B, N, C = x.shape
        w = self.block
        pad = (-N) % w
        if pad:
            x = F.pad(x, (0, 0, 0, pad))
        L = N + pad

        def heads(t):
            return t.view(B, L, self.num_heads, self.head_dim).transpose(1, 2)

        q = self._blocks(heads(self.q_proj(x))) * self.head_dim ** -0.5
        k = self._with_previous(self._blocks(heads(self.k_proj(x))))
        v = self._with_previous(self._blocks(heads(self.v_proj(x))))

        sim = torch.einsum("bhnid,bhnjd->bhnij", q, k)
        i = torch.arange(w, device=x.device) + w
        j = torch.arange(2 * w, device=x.device)
        sim = sim.masked_fill(j[None, :] > i[:, None], torch.finfo(sim.dtype).min)
        attn = sim.softmax(dim=-1)

        out = torch.einsum("bhnij,bhnjd->bhnid", attn, v)
        out = out.reshape(B, self.num_heads, L, self.head_dim).transpose(1, 2).reshape(B, L, C)
        return self.out_proj(out[:, :N])
