import math

import torch
import torch.nn as nn


class ProbSparseSelfAttention(nn.Module):
    """ProbSparse attention of Informer.

    Only the ``u`` most active queries attend; all other positions receive a default
    context. With ``causal=True`` position t depends on the values up to t only.
    """

    def __init__(self, d_model=64, n_heads=4, factor=5, causal=True, attn_dropout=0.05):
        super().__init__()
        self.n_heads = n_heads
        self.factor = factor
        self.causal = causal
        self.q = nn.Linear(d_model, d_model)
        self.k = nn.Linear(d_model, d_model)
        self.v = nn.Linear(d_model, d_model)
        self.o = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(attn_dropout)

    def _top_queries(self, Q, K, sample_k, n_top):
        B, H, L, D = Q.shape
        index = torch.randint(L, (L, sample_k), device=Q.device)
        K_sample = K[:, :, index]
        QK = torch.einsum("bhld,bhlsd->bhls", Q, K_sample)
        M = QK.max(-1)[0] - QK.sum(-1) / L
        return M.topk(n_top, sorted=False)[1]

    def _initial_context(self, V):
        L = V.size(2)
        return V.mean(dim=2, keepdim=True).expand(-1, -1, L, -1).clone()

    def forward(self, x):
        B, L, C = x.shape
        H, D = self.n_heads, C // self.n_heads
        Q = self.q(x).view(B, L, H, D).transpose(1, 2)
        K = self.k(x).view(B, L, H, D).transpose(1, 2)
        V = self.v(x).view(B, L, H, D).transpose(1, 2)

        u = min(L, max(1, self.factor * math.ceil(math.log(L + 1))))
        top = self._top_queries(Q, K, u, u)

        b = torch.arange(B, device=x.device)[:, None, None]
        h = torch.arange(H, device=x.device)[None, :, None]
        scores = Q[b, h, top] @ K.transpose(-2, -1) / math.sqrt(D)
        if self.causal:
            cols = torch.arange(L, device=x.device)
            scores = scores.masked_fill(cols > top.unsqueeze(-1), float("-inf"))

        attn = self.dropout(scores.softmax(dim=-1))
        context = self._initial_context(V)
        context[b, h, top] = attn @ V
        return self.o(context.transpose(1, 2).reshape(B, L, C))
