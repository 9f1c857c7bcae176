import torch
import torch.nn.functional as F
from torch import nn, einsum
from einops import rearrange, repeat


def exists(val):
    return val is not None


def default(val, d):
    return val if exists(val) else d


class Attention(nn.Module):
    """Attention with learned memory key / values ("augmenting self-attention with persistent memory").

    The memories are shared by all positions and are visible to every query, also under the causal mask.

    mask: bool (b, n) over x, used in self attention; context_mask: bool (b, j) over the context, used in
    cross attention. True = keep. `causal` concerns self attention only.
    """

    def __init__(
        self,
        dim = 256,
        dim_head = 32,
        heads = 8,
        causal = False,
        num_mem_kv = 4,
        dropout = 0.
    ):
        super().__init__()
        inner_dim = dim_head * heads
        self.heads = heads
        self.causal = causal
        self.scale = dim_head ** -0.5

        self.to_q = nn.Linear(dim, inner_dim, bias = False)
        self.to_k = nn.Linear(dim, inner_dim, bias = False)
        self.to_v = nn.Linear(dim, inner_dim, bias = False)

        self.num_mem_kv = num_mem_kv
        if num_mem_kv > 0:
            self.mem_k = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))
            self.mem_v = nn.Parameter(torch.randn(heads, num_mem_kv, dim_head))

        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner_dim, dim, bias = False)

    def forward(self, x, context = None, mask = None, context_mask = None):
        b, n, h, device = x.shape[0], x.shape[1], self.heads, x.device
        kv_input = default(context, x)

        q = self.to_q(x)
        k = self.to_k(kv_input)
        v = self.to_v(kv_input)
        q, k, v = map(lambda t: rearrange(t, 'b n (h d) -> b h n d', h = h), (q, k, v))

        key_mask = context_mask if exists(context) else mask

        if self.num_mem_kv > 0:
            mem_k, mem_v = map(lambda t: repeat(t, 'h n d -> b h n d', b = b), (self.mem_k, self.mem_v))
            k = torch.cat((mem_k, k), dim = -2)
            v = torch.cat((mem_v, v), dim = -2)
            if exists(key_mask):
                key_mask = F.pad(key_mask, (self.num_mem_kv, 0), value = True)

        dots = einsum('b h i d, b h j d -> b h i j', q, k) * self.scale
        mask_value = -torch.finfo(dots.dtype).max

        if exists(key_mask):
            dots = dots.masked_fill(~rearrange(key_mask, 'b j -> b 1 1 j'), mask_value)

        if self.causal and not exists(context):
            causal_mask = torch.ones((n, n), dtype = torch.bool, device = device).triu(1)
            causal_mask = F.pad(causal_mask, (self.num_mem_kv, 0), value = False)
            dots = dots.masked_fill(causal_mask, mask_value)

        attn = dots.softmax(dim = -1)
        attn = self.dropout(attn)

        out = einsum('b h i j, b h j d -> b h i d', attn, v)
        out = rearrange(out, 'b h n d -> b n (h d)')
        return self.to_out(out)
