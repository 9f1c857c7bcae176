import torch
from torch import nn, einsum
import torch.nn.functional as F


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class Attention(nn.Module):
    def __init__(
        self,
        dim=128,
        dim_head=32,
        heads=4,
        causal=False,
        num_mem_kv=2,
        talking_heads=True,
        head_scale=True,
        gate_values=False,
        dropout=0.0,
    ):
        super().__init__()
        inner = dim_head * heads
        self.scale = dim_head ** -0.5
        self.heads = heads
        self.causal = causal

        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.to_out = nn.Linear(inner, dim, bias=False)
        self.dropout = nn.Dropout(dropout)

        self.num_mem_kv = num_mem_kv
        if num_mem_kv > 0:
            self.mem_k = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
            self.mem_v = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))

        self.talking_heads = talking_heads
        if talking_heads:
            self.pre_softmax_proj = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))
            self.post_softmax_proj = nn.Parameter(torch.eye(heads) + 0.02 * torch.randn(heads, heads))

        self.head_scale = nn.Parameter(torch.ones(1, heads, 1, 1)) if head_scale else None

        self.to_v_gate = None
        if gate_values:
            self.to_v_gate = nn.Linear(dim, inner)
            nn.init.constant_(self.to_v_gate.weight, 0)
            nn.init.constant_(self.to_v_gate.bias, 1)

    def split(self, t):
        b, n, _ = t.shape
        return t.reshape(b, n, self.heads, -1).transpose(1, 2)

    def forward(self, x, context=None, mask=None, context_mask=None):
        """
        mask / context_mask: (batch, length), True where there is a token.
        `mask` only matters for self attention, `context_mask` only if there is a context.
        """
        b, n, h, device = x.shape[0], x.shape[1], self.heads, x.device
        assert not (self.causal and exists(context)), "causal only makes sense for self attention"

        kv_input = default(context, x)
        q = self.split(self.to_q(x)) * self.scale
        k, v = map(self.split, self.to_kv(kv_input).chunk(2, dim=-1))
        kv_mask = context_mask if exists(context) else mask

        if self.num_mem_kv > 0:
            k = torch.cat((self.mem_k.expand(b, -1, -1, -1), k), dim=-2)
            v = torch.cat((self.mem_v.expand(b, -1, -1, -1), v), dim=-2)
            if exists(kv_mask):
                kv_mask = F.pad(kv_mask, (self.num_mem_kv, 0), value=True)

        sim = einsum("b h i d, b h j d -> b h i j", q, k)
        if self.talking_heads:
            sim = einsum("b h i j, h g -> b g i j", sim, self.pre_softmax_proj)

        # masks come after the head mixing, mixing -inf would give nan
        max_neg = -torch.finfo(sim.dtype).max
        if exists(kv_mask):
            sim = sim.masked_fill(~kv_mask[:, None, None, :], max_neg)
        if self.causal:
            i, j = sim.shape[-2:]
            future = torch.ones((i, j), dtype=torch.bool, device=device).triu(j - i + 1)
            sim = sim.masked_fill(future, max_neg)

        attn = self.dropout(sim.softmax(dim=-1))
        if self.talking_heads:
            attn = einsum("b h i j, h g -> b g i j", attn, self.post_softmax_proj)

        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        if exists(self.head_scale):
            out = out * self.head_scale
        out = out.transpose(1, 2).reshape(b, n, -1)
        if exists(self.to_v_gate):
            out = out * self.to_v_gate(x).sigmoid()
        return self.to_out(out)
