import torch
import torch.nn.functional as F
from torch import nn
from einops import rearrange


class CrossAttention(nn.Module):
    def __init__(self, dim, heads, dim_head, dropout=0.):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        inner = heads * dim_head
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_kv = nn.Linear(dim, inner * 2, bias=False)
        self.dropout = nn.Dropout(dropout)
        self.to_out = nn.Linear(inner, dim)

    def forward(self, x, context, mask=None):
        q = self.to_q(x)
        k, v = self.to_kv(context).chunk(2, dim=-1)
        q, k, v = (rearrange(t, 'b n (h d) -> b h n d', h=self.heads) for t in (q, k, v))
        sim = torch.einsum('b h i d, b h j d -> b h i j', q * self.scale, k)
        if mask is not None:
            sim = sim.masked_fill(~rearrange(mask, 'b j -> b 1 1 j'), -torch.finfo(sim.dtype).max)
        attn = self.dropout(sim.softmax(dim=-1))
        out = torch.einsum('b h i j, b h j d -> b h i d', attn, v)
        return self.to_out(rearrange(out, 'b h n d -> b n (h d)'))


class ChunkedCrossAttention(nn.Module):
    """Chunked cross attention of a RETRO decoder (causal language model).

    Args:
        x: (batch, seq, dim)
        context: (batch, num_chunks, num_neighbors, retrieved_len, dim). ``context[:, u]`` encodes the neighbours
            that were retrieved with all the tokens of chunk ``u`` of ``x`` as the search key.
        context_mask: (batch, num_chunks, num_neighbors, retrieved_len) bool, True for tokens.
    Positions without neighbours get zeros.
    """

    def __init__(self, dim=64, chunk_size=8, heads=4, dim_head=16, dropout=0.):
        super().__init__()
        self.chunk_size = chunk_size
        self.norm = nn.LayerNorm(dim)
        self.cross_attn = CrossAttention(dim, heads, dim_head, dropout)

    def forward(self, x, context, context_mask=None):
        b, n, num_chunks = x.shape[0], x.shape[1], context.shape[1]
        chunk_size = self.chunk_size
        covered = min(num_chunks * chunk_size, n)

        seq = self.norm(x)[:, :covered]
        seq = F.pad(seq, (0, 0, 0, num_chunks * chunk_size - covered), value=0.)

        seq = rearrange(seq, 'b (k n) d -> (b k) n d', k=num_chunks)
        context = rearrange(context, 'b k r n d -> (b k) (r n) d')
        if context_mask is not None:
            context_mask = rearrange(context_mask, 'b k r n -> (b k) (r n)')

        out = self.cross_attn(seq, context, context_mask)
        out = rearrange(out, '(b k) n d -> b (k n) d', b=b)[:, :covered]
        return F.pad(out, (0, 0, 0, n - covered), value=0.)
