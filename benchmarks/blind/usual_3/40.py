import torch
import torch.nn as nn
import torch.nn.functional as F


class CrossAttend(nn.Module):
    def __init__(self, dim, ctx_dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_q = nn.LayerNorm(dim)
        self.norm_kv = nn.LayerNorm(ctx_dim)
        self.q = nn.Linear(dim, dim, bias=False)
        self.kv = nn.Linear(ctx_dim, 2 * dim, bias=False)
        self.o = nn.Linear(dim, dim)

    def forward(self, latents, inputs, mask=None):
        b, m, d = latents.shape
        n = inputs.shape[1]
        inputs = self.norm_kv(inputs)
        q = self.q(self.norm_q(latents)).view(b, m, self.heads, -1).transpose(1, 2)
        k, v = self.kv(inputs).view(b, n, 2, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if mask is not None:
            mask = mask[:, None, None, :]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.o(y.transpose(1, 2).reshape(b, m, d))


class Mlp(nn.Module):
    def __init__(self, dim, mult=2):
        super().__init__()
        self.net = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, dim * mult), nn.GELU(), nn.Linear(dim * mult, dim)
        )

    def forward(self, x):
        return self.net(x)


class PerceiverResampler(nn.Module):
    """Compresses a sequence of any length into ``num_latents`` vectors.

    The queries are learned latents, so the output length does not depend on the input.
    As in Flamingo the keys are the inputs together with the latents. ``mask`` (batch, n) is
    True for valid inputs; the latents themselves are always visible. The inputs carry
    their positions already, nothing is added here, and the same latents serve every sample.
    """

    def __init__(self, dim=64, num_latents=8, depth=2, heads=4):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(num_latents, dim) * 0.02)
        self.layers = nn.ModuleList(
            [nn.ModuleList([CrossAttend(dim, dim, heads), Mlp(dim)]) for _ in range(depth)]
        )
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, mask=None):
        b = x.shape[0]
        z = self.latents.unsqueeze(0).expand(b, -1, -1)
        if mask is not None:
            always = torch.ones(b, z.shape[1], dtype=torch.bool, device=x.device)
            mask = torch.cat([mask.bool(), always], dim=1)
        for attend, mlp in self.layers:
            z = z + attend(z, torch.cat([x, z], dim=1), mask)
            z = z + mlp(z)
        return self.norm(z)
