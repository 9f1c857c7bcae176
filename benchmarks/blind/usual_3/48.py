import torch
import torch.nn as nn
import torch.nn.functional as F


class MuAttention(nn.Module):
    """Causal attention with the scale of muP: logits are divided by d_head, not by
    sqrt(d_head), so that they stay bounded as the width grows (Tensor Programs V).
    ``attn_mult`` is the tunable multiplier; sqrt(d_head) would give the usual scale back.
    """

    def __init__(self, width, n_head, attn_mult):
        super().__init__()
        self.n_head = n_head
        self.d_head = width // n_head
        self.scale = attn_mult / self.d_head
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        with torch.no_grad():
            self.qkv.weight[:width].zero_()  # zero queries at init, as recommended in the paper

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.n_head, self.d_head).transpose(1, 2)
            for z in self.qkv(x).split(c, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class MuBlock(nn.Module):
    def __init__(self, width, n_head, attn_mult):
        super().__init__()
        self.norm_a = nn.LayerNorm(width)
        self.attn = MuAttention(width, n_head, attn_mult)
        self.norm_m = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        x = x + self.attn(self.norm_a(x))
        return x + self.down(F.gelu(self.up(self.norm_m(x))))


class MuGPT(nn.Module):
    """Small language model in maximal update parametrisation.

    The readout shares its weights with the token embedding, and its logits are divided by
    width / base_width.
    """

    def __init__(self, vocab_size=256, width=64, n_head=4, n_layer=2, ctx=128, attn_mult=1.0, base_width=64):
        super().__init__()
        self.tok = nn.Embedding(vocab_size, width)
        self.pos = nn.Embedding(ctx, width)
        self.blocks = nn.ModuleList([MuBlock(width, n_head, attn_mult) for _ in range(n_layer)])
        self.norm = nn.LayerNorm(width)
        self.output_mult = base_width / width

    def forward(self, ids):
        pos = torch.arange(ids.shape[1], device=ids.device)
        x = self.tok(ids) + self.pos(pos)
        for block in self.blocks:
            x = block(x)
        return F.linear(self.norm(x), self.tok.weight) * self.output_mult
