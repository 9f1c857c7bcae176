import math
from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class WavLMLikeAttention(nn.Module):
    """Self-attention with a gated, bucketed relative position bias.

    The first layer of a stack owns the bucket embedding (``has_relative_position_bias=True``) and returns
    the ungated bias, which the caller feeds into the following layers as ``position_bias``.
    """

    def __init__(
        self,
        embed_dim: int = 128,
        num_heads: int = 4,
        dropout: float = 0.0,
        num_buckets: int = 32,
        max_distance: int = 128,
        has_relative_position_bias: bool = True,
    ):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.dropout = dropout
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)

        self.num_buckets = num_buckets
        self.max_distance = max_distance
        self.gru_rel_pos_const = nn.Parameter(torch.ones(1, num_heads, 1, 1))
        self.gru_rel_pos_linear = nn.Linear(self.head_dim, 8)
        self.rel_attn_embed = nn.Embedding(num_buckets, num_heads) if has_relative_position_bias else None

    def _relative_positions_bucket(self, relative_positions: torch.Tensor) -> torch.Tensor:
        num_buckets = self.num_buckets // 2
        buckets = (relative_positions > 0).long() * num_buckets
        distance = relative_positions.abs()
        max_exact = num_buckets // 2
        is_small = distance < max_exact
        large = torch.log(distance.clamp(min=1).float() / max_exact)
        large = large / math.log(self.max_distance / max_exact) * (num_buckets - max_exact)
        large = (max_exact + large).long().clamp(max=num_buckets - 1)
        return buckets + torch.where(is_small, distance, large)

    def compute_bias(self, length: int, device) -> torch.Tensor:
        pos = torch.arange(length, device=device)
        relative_position = pos[None, :] - pos[:, None]
        values = self.rel_attn_embed(self._relative_positions_bucket(relative_position))
        return values.permute(2, 0, 1)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        position_bias: Optional[torch.Tensor] = None,
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """
        attention_mask: (batch, time), 1 / True for valid frames; every utterance has at least one.
        position_bias: (num_heads, time, time) from an earlier layer.
        """
        bsz, tgt_len, _ = hidden_states.shape
        if position_bias is None:
            if self.rel_attn_embed is None:
                raise ValueError("this layer needs the position_bias of the first layer")
            position_bias = self.compute_bias(tgt_len, hidden_states.device)

        # the gate looks at the raw input of each head, not at the projected query
        gate_in = hidden_states.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2)
        gate = self.gru_rel_pos_linear(gate_in)
        gate = gate.view(bsz, self.num_heads, tgt_len, 2, 4).sum(-1)
        gate_a, gate_b = torch.sigmoid(gate).chunk(2, dim=-1)
        gate_output = gate_a * (gate_b * self.gru_rel_pos_const - 1.0) + 2.0
        gated_bias = gate_output * position_bias.unsqueeze(0)

        def heads(t):
            return t.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2)

        query = heads(self.q_proj(hidden_states) * self.scaling)
        key = heads(self.k_proj(hidden_states))
        value = heads(self.v_proj(hidden_states))

        logits = torch.matmul(query, key.transpose(-1, -2)) + gated_bias
        if attention_mask is not None:
            logits = logits.masked_fill(~attention_mask.bool()[:, None, None, :], float("-inf"))
        probs = F.softmax(logits, dim=-1)
        probs = F.dropout(probs, p=self.dropout, training=self.training)

        out = torch.matmul(probs, value).transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        return self.out_proj(out), position_bias
