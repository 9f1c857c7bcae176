import math

import torch
import torch.nn as nn


class ProbSparseAttention(nn.Module):
    """ProbSparse self-attention of Informer.

    Only the ``factor * ln(L)`` queries with the largest sparsity measure are attended in
    full; the measure is estimated on sampled keys. The other queries keep the initial context.
    ``causal=True`` is the masked variant of the decoder.
    """

    def __init__(self, d_model: int = 64, n_heads: int = 4, factor: int = 3, causal: bool = True, dropout: float = 0.0):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.causal = causal
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)

    def _top_queries(self, Q, K, sample_k, n_top):
        B, H, L, E = K.shape
        idx = torch.randint(L, (L, sample_k), device=K.device)
        K_sample = K[:, :, idx, :]                                    # B H L u E
        qk = torch.einsum("bhle,bhlue->bhlu", Q, K_sample)
        measure = qk.max(-1)[0] - qk.sum(-1) / L
        return measure.topk(n_top, sorted=False)[1]

    def _initial_context(self, V):
        return V.mean(dim=-2, keepdim=True).expand_as(V).clone()

    def forward(self, x):
        B, L, D = x.shape
        Q, K, V = (
            p(x).view(B, L, self.n_heads, -1).transpose(1, 2)
            for p in (self.query_projection, self.key_projection, self.value_projection)
        )
        u = min(L, max(1, self.factor * math.ceil(math.log(L)))) if L > 1 else 1
        top = self._top_queries(Q, K, u, u)                           # B H u

        gather = top.unsqueeze(-1).expand(-1, -1, -1, Q.size(-1))
        scores = Q.gather(2, gather) @ K.transpose(-2, -1) / math.sqrt(Q.size(-1))
        if self.causal:
            future = torch.arange(L, device=x.device) > top.unsqueeze(-1)
            scores = scores.masked_fill(future, float("-inf"))
        attn = self.dropout(scores.softmax(dim=-1))

        context = self._initial_context(V)
        context = context.scatter(2, gather, attn @ V)
        return self.out_projection(context.transpose(1, 2).reshape(B, L, D))
