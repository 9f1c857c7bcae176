import math

import torch
import torch.nn as nn


class PointerDecoder(nn.Module):
    """
    Decoder step of the attention model for routing problems: a multi-head glimpse over the nodes, then a
    single-head pointer whose logits are clipped to [-C, C].

    Args:
        embeddings: (B, N, dim) node embeddings
        step_context: (B, dim) embedding of the partial tour
        visited: (B, N) bool, True for nodes that are already in the tour

    Returns:
        probs: (B, N) distribution over the next node; visited nodes have probability 0
    """

    def __init__(self, dim=64, n_heads=4, tanh_clipping=10.0):
        super().__init__()
        self.dim = dim
        self.n_heads = n_heads
        self.tanh_clipping = tanh_clipping
        self.project_node = nn.Linear(dim, 3 * dim, bias=False)
        self.project_fixed = nn.Linear(dim, dim, bias=False)
        self.project_step = nn.Linear(dim, dim, bias=False)
        self.project_out = nn.Linear(dim, dim, bias=False)

    def _glimpse(self, query, key, value, visited):
        B, N, _ = key.shape
        hd = self.dim // self.n_heads
        q = query.view(B, self.n_heads, 1, hd)
        k = key.view(B, N, self.n_heads, hd).transpose(1, 2)
        v = value.view(B, N, self.n_heads, hd).transpose(1, 2)
        compat = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(hd)
        compat = compat.masked_fill(visited[:, None, None, :], -math.inf)
        heads = torch.matmul(torch.softmax(compat, dim=-1), v)
        return self.project_out(heads.reshape(B, self.dim))

    def forward(self, embeddings, step_context, visited, temperature=1.0):
        glimpse_k, glimpse_v, logit_k = self.project_node(embeddings).chunk(3, dim=-1)
        graph_context = self.project_fixed(embeddings.mean(dim=1))
        query = graph_context + self.project_step(step_context)

        glimpse = self._glimpse(query, glimpse_k, glimpse_v, visited)

        logits = torch.einsum("bd,bnd->bn", glimpse, logit_k) / math.sqrt(self.dim)
        logits = logits.masked_fill(visited, -math.inf)
        if self.tanh_clipping > 0:
            logits = torch.tanh(logits) * self.tanh_clipping
        return torch.softmax(logits / temperature, dim=-1)
