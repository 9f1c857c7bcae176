import math
from typing import Optional, Tuple

import torch
from torch import nn


class DisentangledSelfAttention(nn.Module):
    """DeBERTa style disentangled self-attention.

    score(i, j) = [Qc_i . Kc_j  +  Qc_i . Kr_{d(i,j)}  +  Kc_j . Qr_{d(j,i)}] / sqrt(3 * head_size)

    with d(i, j) the distance i - j, clamped to [-k, k - 1] and shifted to [0, 2k - 1].

    Args:
        attention_mask: (batch, seq) tensor, 1 for tokens to attend to and 0 for padding.
    """

    def __init__(
        self,
        hidden_size: int = 192,
        num_attention_heads: int = 6,
        max_relative_positions: int = 64,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
    ):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("hidden_size is not a multiple of num_attention_heads")
        self.num_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.span = max_relative_positions

        self.in_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(hidden_size))
        self.v_bias = nn.Parameter(torch.zeros(hidden_size))
        self.rel_embeddings = nn.Embedding(2 * self.span, hidden_size)
        self.pos_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.pos_q_proj = nn.Linear(hidden_size, hidden_size)
        self.pos_dropout = nn.Dropout(hidden_dropout_prob)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], self.num_heads, self.head_size).transpose(-3, -2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, ...]:
        bsz, seq, hidden = hidden_states.shape
        query, key, value = self.in_proj(hidden_states).chunk(3, dim=-1)
        query = self.transpose_for_scores(query + self.q_bias)
        key = self.transpose_for_scores(key)
        value = self.transpose_for_scores(value + self.v_bias)

        scale = math.sqrt(self.head_size * 3)
        query = query / scale
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = scores + self.disentangled_bias(query, key, scale)

        if attention_mask is not None:
            padded = ~attention_mask.bool()[:, None, None, :]
            scores = scores.masked_fill(padded, torch.finfo(scores.dtype).min)
        probs = self.dropout(torch.softmax(scores, dim=-1))

        context = torch.matmul(probs, value).transpose(1, 2).reshape(bsz, seq, hidden)
        return (context, probs) if output_attentions else (context,)

    def disentangled_bias(self, query: torch.Tensor, key: torch.Tensor, scale: float) -> torch.Tensor:
        bsz, heads, seq, _ = query.shape
        ids = torch.arange(seq, device=query.device)
        # index[a, b] encodes the distance a - b
        index = (ids[:, None] - ids[None, :] + self.span).clamp(0, 2 * self.span - 1)
        index = index.expand(bsz, heads, seq, seq)

        rel = self.pos_dropout(self.rel_embeddings.weight)
        pos_key = self.transpose_for_scores(self.pos_proj(rel))
        pos_query = self.transpose_for_scores(self.pos_q_proj(rel)) / scale

        # content -> position: row i, column j takes the key of distance i - j
        c2p = torch.matmul(query, pos_key.transpose(-1, -2))
        c2p = torch.gather(c2p, dim=-1, index=index)

        # position -> content: first laid out as row j (key), column i (query), distance j - i
        p2c = torch.matmul(key, pos_query.transpose(-1, -2))
        p2c = torch.gather(p2c, dim=-1, index=index).transpose(-1, -2)
        return c2p + p2c
