import math
from typing import Optional

import torch
from torch import nn


class DisentangledSelfAttention(nn.Module):
    """
    Disentangled attention of DeBERTa with clipped relative positions and shared content / position
    projections (as in v2):

        A_ij = Qc_i Kc_j + Qc_i Kr_d(i,j) + Kc_j Qr_d(j,i),    d(i, j) = clip(i - j + k, 0, 2k - 1)

    and the sum is divided by sqrt(3 d), one d for each of the terms in use.

    Parameters:
        pos_att_type: which position terms are used, "c2p" and / or "p2c".
        max_relative_positions: k.

    `attention_mask` is `(B, N)` or `(B, N, N)`, 1 = attend. Blocked entries get exactly zero probability, and so
    does every entry of a row that is blocked completely (XSoftmax).
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 4,
        max_relative_positions: int = 16,
        pos_att_type=("c2p", "p2c"),
        attention_probs_dropout_prob: float = 0.0,
        hidden_dropout_prob: float = 0.0,
    ):
        super().__init__()
        assert hidden_size % num_attention_heads == 0
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.att_span = max_relative_positions
        self.pos_att_type = tuple(pos_att_type)
        self.query_proj = nn.Linear(hidden_size, hidden_size)
        self.key_proj = nn.Linear(hidden_size, hidden_size)
        self.value_proj = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.pos_dropout = nn.Dropout(hidden_dropout_prob)
        self.rel_embeddings = nn.Embedding(2 * max_relative_positions, hidden_size) if self.pos_att_type else None

    def transpose_for_scores(self, x):
        return x.view(x.size(0), x.size(1), self.num_attention_heads, self.attention_head_size).transpose(1, 2)

    def _position_scores(self, query, key, scale):
        b, h, n, _ = query.shape
        ids = torch.arange(n, device=query.device)
        index = (ids[:, None] - ids[None, :] + self.att_span).clamp(0, 2 * self.att_span - 1)
        index = index.expand(b, h, n, n)
        rel = self.pos_dropout(self.rel_embeddings.weight).unsqueeze(0)

        score = 0
        if "c2p" in self.pos_att_type:
            pos_key = self.transpose_for_scores(self.key_proj(rel))
            c2p = torch.matmul(query, pos_key.transpose(-1, -2))
            score = score + torch.gather(c2p, dim=-1, index=index) / scale
        if "p2c" in self.pos_att_type:
            pos_query = self.transpose_for_scores(self.query_proj(rel))
            p2c = torch.matmul(key, pos_query.transpose(-1, -2))
            # rows are keys here: [j, i] picks d(j, i), the transposition puts it at [i, j]
            score = score + torch.gather(p2c, dim=-1, index=index).transpose(-1, -2) / scale
        return score

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        query = self.transpose_for_scores(self.query_proj(hidden_states))
        key = self.transpose_for_scores(self.key_proj(hidden_states))
        value = self.transpose_for_scores(self.value_proj(hidden_states))

        scale_factor = 1 + len(self.pos_att_type)
        scale = math.sqrt(self.attention_head_size * scale_factor)
        scores = torch.matmul(query, key.transpose(-1, -2)) / scale
        if self.pos_att_type:
            scores = scores + self._position_scores(query, key, scale)

        if attention_mask is not None:
            if attention_mask.dim() == 2:
                attention_mask = attention_mask[:, None, :]
            blocked = ~attention_mask.bool().unsqueeze(1)
            scores = scores.masked_fill(blocked, torch.finfo(scores.dtype).min)
            probs = torch.softmax(scores, dim=-1).masked_fill(blocked, 0.0)
        else:
            probs = torch.softmax(scores, dim=-1)

        context = torch.matmul(self.dropout(probs), value)
        return self.dense(context.transpose(1, 2).flatten(2))
