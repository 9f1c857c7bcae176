import torch
from torch import nn


class KNNMemory:
    """Non-differentiable memory of past keys and values, (batch, heads, entries, dim_head)."""

    def __init__(self, max_memories):
        self.max_memories = max_memories
        self.keys = None
        self.values = None

    def __len__(self):
        return 0 if self.keys is None else self.keys.shape[2]

    def add(self, k, v):
        if self.keys is not None:
            k = torch.cat((self.keys, k), dim=2)
            v = torch.cat((self.values, v), dim=2)
        self.keys = k[:, :, -self.max_memories:]
        self.values = v[:, :, -self.max_memories:]

    def search(self, q, topk):
        n, d = q.shape[2], self.values.shape[-1]
        sim = q @ self.keys.transpose(-1, -2)
        scores, idx = sim.topk(min(topk, len(self)), dim=-1)
        values = self.values.unsqueeze(2).expand(-1, -1, n, -1, -1)
        values = values.gather(3, idx.unsqueeze(-1).expand(*idx.shape, d))
        return scores, values


class KNNAttention(nn.Module):
    """
    Causal attention over the current segment and the nearest neighbours of every query among the
    segments before it (Memorizing Transformers). One softmax over both.

    Pass the returned memory to the next segment of the same documents.
    """

    def __init__(self, dim=64, heads=4, dim_head=16, num_retrieved_memories=8, max_memories=512, dropout=0.):
        super().__init__()
        self.heads = heads
        self.scale = dim_head ** -0.5
        self.num_retrieved_memories = num_retrieved_memories
        self.max_memories = max_memories
        inner_dim = heads * dim_head

        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.to_q = nn.Linear(dim, inner_dim, bias=False)
        self.to_kv = nn.Linear(dim, inner_dim * 2, bias=False)
        self.to_out = nn.Linear(inner_dim, dim, bias=False)

    def forward(self, x, memory=None):
        b, n, _ = x.shape
        if memory is None:
            memory = KNNMemory(self.max_memories)

        x = self.norm(x)
        q = self.to_q(x) * self.scale
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))

        # local

        sim = q @ k.transpose(-1, -2)
        causal_mask = torch.ones((n, n), dtype=torch.bool, device=x.device).triu(1)
        sim = sim.masked_fill(causal_mask, -torch.finfo(sim.dtype).max)

        # retrieve

        memory.add(k.detach(), v.detach())
        mem_sim, mem_v = memory.search(q, self.num_retrieved_memories)

        # attend to both

        attn = torch.cat((mem_sim, sim), dim=-1).softmax(dim=-1)
        attn = self.dropout(attn)
        mem_attn, local_attn = attn.split((mem_sim.shape[-1], n), dim=-1)

        out = local_attn @ v + torch.einsum('b h i j, b h i j d -> b h i d', mem_attn, mem_v)
        out = out.transpose(1, 2).reshape(b, n, -1)
        return self.to_out(out), memory
