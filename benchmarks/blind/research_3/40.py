import math

import torch
import torch.nn as nn


class RoutingDecoder(nn.Module):
    """One decoding step of the attention model for routing problems (Kool et al. 2019).

    A multi-head glimpse refines the context, then a single head with clipped logits
    gives the distribution over the next node.

    Args:
        embed_dim, n_heads
        tanh_clipping: logits are kept within [-C, C], 0 = off

    Inputs:
        embeddings  [B, n, D]   nodes
        context     [B, D]      state of the vehicle
        visited     [B, n] bool True for nodes that must not be chosen again
    Returns:
        log_p       [B, n]
        glimpse     [B, D]
    """

    def __init__(self, embed_dim=64, n_heads=4, tanh_clipping=10.0, temp=1.0):
        super().__init__()
        self.embed_dim = embed_dim
        self.n_heads = n_heads
        self.tanh_clipping = tanh_clipping
        self.temp = temp
        self.project_node_embeddings = nn.Linear(embed_dim, 3 * embed_dim, bias=False)
        self.project_fixed_context = nn.Linear(embed_dim, embed_dim, bias=False)
        self.project_step_context = nn.Linear(embed_dim, embed_dim, bias=False)
        self.project_out = nn.Linear(embed_dim, embed_dim, bias=False)

    def _make_heads(self, v):
        b, n, _ = v.shape
        return v.view(b, n, self.n_heads, -1).transpose(1, 2)

    def forward(self, embeddings, context, visited):
        B, n, D = embeddings.shape
        glimpse_K, glimpse_V, logit_K = self.project_node_embeddings(embeddings).chunk(3, dim=-1)

        query = self.project_fixed_context(embeddings.mean(1)) + self.project_step_context(context)
        query = query.unsqueeze(1)

        q, k, v = self._make_heads(query), self._make_heads(glimpse_K), self._make_heads(glimpse_V)
        compat = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.size(-1))
        compat = compat.masked_fill(visited[:, None, None, :], -math.inf)
        heads = torch.matmul(torch.softmax(compat, dim=-1), v)
        glimpse = self.project_out(heads.transpose(1, 2).reshape(B, 1, D))

        logits = torch.matmul(glimpse, logit_K.transpose(-2, -1)).squeeze(1) / math.sqrt(D)
        logits = logits.masked_fill(visited, -math.inf)
        if self.tanh_clipping > 0:
            logits = torch.tanh(logits) * self.tanh_clipping

        log_p = torch.log_softmax(logits / self.temp, dim=-1)
        return log_p, glimpse.squeeze(1)
