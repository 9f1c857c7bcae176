import torch
import torch.nn as nn


class MemorizingAttention(nn.Module):
    """Attention over the local context and over retrieved memories (Memorizing Transformers).

    Two separate softmaxes, mixed by a learned gate per head. Keys and queries are l2-normalised and
    multiplied by a learned temperature, so there is no 1/sqrt(d). All heads share one key/value head.

    mem_kv: [B, T, K, 2, dim_head] the K neighbours of each query position, mem_mask: [B, T, K] True where
    a neighbour exists. Positions without any neighbour read nothing from the memory.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, init_scale=10.0):
        super().__init__()
        self.heads = heads
        self.dim_head = dim_head
        self.to_q = nn.Linear(dim, heads * dim_head, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim_head, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)
        self.log_temp = nn.Parameter(torch.full((heads, 1, 1), init_scale).log())
        self.gate = nn.Parameter(torch.zeros(heads, 1, 1))

    def forward(self, x, mem_kv=None, mem_mask=None):
        b, t, _ = x.shape
        q = self.to_q(x).view(b, t, self.heads, self.dim_head).transpose(1, 2)
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q = nn.functional.normalize(q, dim=-1) * self.log_temp.exp()
        k = nn.functional.normalize(k, dim=-1)

        sim = torch.einsum("bhid,bjd->bhij", q, k)
        future = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        local = torch.einsum("bhij,bjd->bhid", sim.masked_fill(future, float("-inf")).softmax(-1), v)

        if mem_kv is None:
            out = local
        else:
            mk, mv = mem_kv.unbind(dim=-2)
            mk = nn.functional.normalize(mk, dim=-1)
            msim = torch.einsum("bhid,bijd->bhij", q, mk)
            if mem_mask is not None:
                msim = msim.masked_fill(~mem_mask[:, None], torch.finfo(msim.dtype).min)
            w = msim.softmax(-1)
            g = self.gate.sigmoid()
            if mem_mask is not None:
                w = w * mem_mask[:, None]
                g = g * mem_mask.any(-1)[:, None, :, None]
            remote = torch.einsum("bhij,bijd->bhid", w, mv)
            out = g * remote + (1 - g) * local
        return self.to_out(out.transpose(1, 2).reshape(b, t, -1))
