import torch
from torch import nn


class TalkingHeadsAttention(nn.Module):
    """Talking-heads attention (Shazeer et al., 2020).

    The logits are mixed over the heads before the softmax and the probabilities after
    it. The second mixing has no constraint, so a row of the mixed weights may hold
    negative numbers and need not sum to one. The mask is applied after the first
    mixing (-inf couldn't be mixed).
    """

    def __init__(self, dim=128, heads_k=4, heads=6, heads_v=4, dim_k=32, dim_v=32):
        super().__init__()
        self.scale = dim_k ** -0.5
        self.w_q = nn.Parameter(torch.randn(dim, heads_k, dim_k) * dim ** -0.5)
        self.w_k = nn.Parameter(torch.randn(dim, heads_k, dim_k) * dim ** -0.5)
        self.w_v = nn.Parameter(torch.randn(dim, heads_v, dim_v) * dim ** -0.5)
        self.w_o = nn.Parameter(torch.randn(heads_v, dim_v, dim) * (heads_v * dim_v) ** -0.5)
        self.p_l = nn.Parameter(torch.randn(heads_k, heads) * heads_k ** -0.5)
        self.p_w = nn.Parameter(torch.randn(heads, heads_v) * heads ** -0.5)

    def forward(self, x, memory=None, memory_mask=None):
        memory = x if memory is None else memory
        q = torch.einsum("bnd,dhk->bnhk", x, self.w_q)
        k = torch.einsum("bmd,dhk->bmhk", memory, self.w_k)
        v = torch.einsum("bmd,dhv->bmhv", memory, self.w_v)

        j = torch.einsum("bnhk,bmhk->bhnm", q, k) * self.scale
        l = torch.einsum("bhnm,hg->bgnm", j, self.p_l)
        if memory_mask is not None:
            l = l.masked_fill(~memory_mask.bool()[:, None, None, :], torch.finfo(l.dtype).min)
        w = l.softmax(dim=-1)
        u = torch.einsum("bgnm,gh->bhnm", w, self.p_w)

        o = torch.einsum("bhnm,bmhv->bnhv", u, v)
        return torch.einsum("bnhv,hvd->bnd", o, self.w_o)
