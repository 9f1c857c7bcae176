import math

import numpy as np
import torch
import torch.nn as nn


class ProbSparseAttention(nn.Module):
    """Causal ProbSparse self attention of the Informer.

    Only the ``u = factor * ln(L)`` most active queries attend; the others keep the running sum of the values.
    """

    def __init__(self, d_model=64, n_heads=4, factor=5, attention_dropout=0.0, causal=True):
        super().__init__()
        self.factor = factor
        self.causal = causal
        self.n_heads = n_heads
        self.query_projection = nn.Linear(d_model, d_model)
        self.key_projection = nn.Linear(d_model, d_model)
        self.value_projection = nn.Linear(d_model, d_model)
        self.out_projection = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(attention_dropout)

    def _prob_QK(self, Q, K, sample_k, n_top):
        B, H, L_K, E = K.shape
        L_Q = Q.shape[2]
        # sparsity measurement on a random sample of the keys
        index_sample = torch.randint(L_K, (L_Q, sample_k), device=K.device)
        K_sample = K.unsqueeze(2).expand(B, H, L_Q, L_K, E)[
            :, :, torch.arange(L_Q, device=K.device).unsqueeze(1), index_sample, :
        ]
        QK_sample = torch.matmul(Q.unsqueeze(-2), K_sample.transpose(-2, -1)).squeeze(-2)
        M = QK_sample.max(-1)[0] - QK_sample.sum(-1) / L_K
        M_top = M.topk(n_top, sorted=False)[1]

        Q_reduce = Q[
            torch.arange(B, device=Q.device)[:, None, None],
            torch.arange(H, device=Q.device)[None, :, None],
            M_top,
            :,
        ]
        return torch.matmul(Q_reduce, K.transpose(-2, -1)), M_top

    def _initial_context(self, V, L_Q):
        if self.causal:
            return V.cumsum(dim=-2)
        return V.mean(dim=-2, keepdim=True).expand(-1, -1, L_Q, -1).clone()

    def _update_context(self, context, V, scores, index):
        B, H, L_V, _ = V.shape
        if self.causal:
            n_top = scores.shape[2]
            future = torch.ones(n_top, L_V, dtype=torch.bool, device=V.device).triu(1)
            scores = scores.masked_fill(future[None, None], -np.inf)
        attn = self.dropout(torch.softmax(scores, dim=-1))
        context = context.clone()
        context[
            torch.arange(B, device=V.device)[:, None, None],
            torch.arange(H, device=V.device)[None, :, None],
            index,
            :,
        ] = torch.matmul(attn, V).type_as(context)
        return context

    def forward(self, x):
        B, L, C = x.shape
        q = self.query_projection(x).view(B, L, self.n_heads, -1).transpose(1, 2)
        k = self.key_projection(x).view(B, L, self.n_heads, -1).transpose(1, 2)
        v = self.value_projection(x).view(B, L, self.n_heads, -1).transpose(1, 2)

        u = min(int(self.factor * math.ceil(math.log(L + 1))), L)
        scores, index = self._prob_QK(q, k, sample_k=u, n_top=u)
        scores = scores * (1.0 / math.sqrt(C // self.n_heads))
        context = self._update_context(self._initial_context(v, L), v, scores, index)
        return self.out_projection(context.transpose(1, 2).reshape(B, L, C))
