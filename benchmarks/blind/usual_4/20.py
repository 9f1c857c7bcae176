import math

import torch
import torch.nn as nn
import torch.nn.functional as F


class KnowledgeTracingAttention(nn.Module):
    """Retrieves past interactions for the question at hand.

    questions:    (B, T, d) embeddings of the exercises, used for queries and keys
    interactions: (B, T, d) embeddings of (exercise, answer) pairs, used for values

    The answer at step t must not be used to predict step t, so that step t may only attend to
    the steps before it.
    """

    def __init__(self, d_model=64, n_heads=4, dropout=0.1):
        super().__init__()
        self.d_k = d_model // n_heads
        self.h = n_heads
        self.qk_linear = nn.Linear(d_model, d_model)
        self.v_linear = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(dropout)
        self.out_proj = nn.Linear(d_model, d_model)
        self.layer_norm = nn.LayerNorm(d_model)

    def forward(self, questions, interactions):
        bs, seqlen, _ = questions.shape
        qk = self.qk_linear(questions).view(bs, seqlen, self.h, self.d_k).transpose(1, 2)
        v = self.v_linear(interactions).view(bs, seqlen, self.h, self.d_k).transpose(1, 2)

        scores = torch.matmul(qk, qk.transpose(-2, -1)) / math.sqrt(self.d_k)
        past = torch.ones(seqlen, seqlen, device=scores.device).tril(diagonal=-1).bool()
        scores = scores.masked_fill(~past, float("-inf"))
        scores = F.softmax(scores, dim=-1)
        scores = self.dropout(scores)

        output = torch.matmul(scores, v).transpose(1, 2).reshape(bs, seqlen, -1)
        return self.layer_norm(questions + self.dropout(self.out_proj(output)))
