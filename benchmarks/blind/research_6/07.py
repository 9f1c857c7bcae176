import torch
import torch.nn as nn
import torch.nn.functional as F


class KNNMemoryAttention(nn.Module):
    """Causal attention with a non-differentiable kNN memory (Memorizing Transformers).

    A document is fed as consecutive segments. Each query attends to its own segment
    (causally) and to the ``topk`` nearest key/value pairs of the segments that came
    before; both results are mixed by a learned gate per head. ``reset()`` has to be
    called at the start of a new document.
    """

    def __init__(self, dim=64, num_heads=4, topk=8, max_memories=2048):
        super().__init__()
        self.num_heads = num_heads
        self.head_dim = dim // num_heads
        self.topk = topk
        self.max_memories = max_memories
        self.to_q = nn.Linear(dim, dim, bias=False)
        self.to_kv = nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)
        self.gate = nn.Parameter(torch.zeros(num_heads, 1, 1))
        self.reset()

    def reset(self):
        self.mem_k = None
        self.mem_v = None

    @torch.no_grad()
    def remember(self, k, v):
        if self.mem_k is None:
            self.mem_k, self.mem_v = k.detach(), v.detach()
        else:
            self.mem_k = torch.cat([self.mem_k, k.detach()], dim=2)
            self.mem_v = torch.cat([self.mem_v, v.detach()], dim=2)
        self.mem_k = self.mem_k[:, :, -self.max_memories:]
        self.mem_v = self.mem_v[:, :, -self.max_memories:]

    def recall(self, q):
        sims = q @ self.mem_k.transpose(-1, -2)
        n = min(self.topk, sims.size(-1))
        sims, idx = sims.topk(n, dim=-1)
        B, H, T, _ = q.shape
        flat = idx.reshape(B, H, T * n, 1).expand(-1, -1, -1, self.head_dim)
        picked = self.mem_v.gather(2, flat).view(B, H, T, n, self.head_dim)
        w = sims.softmax(dim=-1)
        return torch.einsum("bhtn,bhtnd->bhtd", w, picked)

    def forward(self, x):
        B, T, C = x.shape
        split = lambda t: t.view(B, T, self.num_heads, self.head_dim).transpose(1, 2)
        q = split(self.to_q(x))
        k, v = map(split, self.to_kv(x).chunk(2, dim=-1))
        q, k = F.normalize(q, dim=-1) * self.head_dim ** 0.5, F.normalize(k, dim=-1)

        local = q @ k.transpose(-1, -2)
        future = torch.ones(T, T, dtype=torch.bool, device=x.device).triu(1)
        local = local.masked_fill(future, float("-inf")).softmax(dim=-1) @ v

        self.remember(k, v)
        g = torch.sigmoid(self.gate)
        out = g * self.recall(q) + (1 - g) * local
        return self.to_out(out.transpose(1, 2).reshape(B, T, C))
