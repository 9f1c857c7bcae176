import math
from typing import Optional, Tuple

import torch
from torch import nn


class BertSelfAttention(nn.Module):
    """
    Args:
        position_embedding_type: "absolute" (nothing happens here), "relative_key" or "relative_key_query".
        max_position_embeddings: longest supported distance + 1 for the relative types.

    ``attention_mask`` is the *extended* mask, broadcastable to ``(batch, heads, query, key)``: 0.0 where
    attention is allowed, a large negative number where it is not. ``encoder_attention_mask`` is the same for
    ``encoder_hidden_states`` and replaces it in cross attention. ``head_mask`` is ``(heads,)``, 1.0 keeps a head.
    """

    def __init__(
        self,
        hidden_size: int = 128,
        num_attention_heads: int = 4,
        attention_probs_dropout_prob: float = 0.1,
        position_embedding_type: str = "relative_key_query",
        max_position_embeddings: int = 64,
    ):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("The hidden size is not a multiple of the number of attention heads")
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = hidden_size

        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.position_embedding_type = position_embedding_type
        self.max_position_embeddings = max_position_embeddings
        if position_embedding_type in ("relative_key", "relative_key_query"):
            self.distance_embedding = nn.Embedding(2 * max_position_embeddings - 1, self.attention_head_size)
        elif position_embedding_type != "absolute":
            raise ValueError(f"unknown position_embedding_type {position_embedding_type!r}")

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.size()[:-1], self.num_attention_heads, self.attention_head_size).permute(0, 2, 1, 3)

    def _relative_scores(self, query_layer, key_layer):
        length = query_layer.shape[2]
        ids = torch.arange(length, device=query_layer.device)
        distance = ids[:, None] - ids[None, :]
        embedding = self.distance_embedding(distance + self.max_position_embeddings - 1).to(query_layer.dtype)
        scores = torch.einsum("bhld,lrd->bhlr", query_layer, embedding)
        if self.position_embedding_type == "relative_key_query":
            scores = scores + torch.einsum("bhrd,lrd->bhlr", key_layer, embedding)
        return scores

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        encoder_hidden_states: Optional[torch.Tensor] = None,
        encoder_attention_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, ...]:
        is_cross_attention = encoder_hidden_states is not None
        source = encoder_hidden_states if is_cross_attention else hidden_states
        if is_cross_attention:
            attention_mask = encoder_attention_mask

        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(source))
        value_layer = self.transpose_for_scores(self.value(source))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        # distances between two different sequences mean nothing
        if self.position_embedding_type != "absolute" and not is_cross_attention:
            attention_scores = attention_scores + self._relative_scores(query_layer, key_layer)
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        # this drops out entire tokens to attend to, as in the original Transformer paper
        dropped_probs = self.dropout(attention_probs)
        if head_mask is not None:
            dropped_probs = dropped_probs * head_mask.view(1, -1, 1, 1)

        context_layer = torch.matmul(dropped_probs, value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        context_layer = context_layer.view(*context_layer.size()[:-2], self.all_head_size)
        return (context_layer, attention_probs) if output_attentions else (context_layer,)
