import math
from typing import Iterable, Optional, Tuple

import torch
from torch import nn


def prune_linear_layer(layer: nn.Linear, index: torch.Tensor, dim: int = 0) -> nn.Linear:
    """New linear layer with the entries ``index`` of its outputs (dim=0) or inputs (dim=1)."""
    index = index.to(layer.weight.device)
    weight = layer.weight.index_select(dim, index).detach().clone()
    new_layer = nn.Linear(weight.size(1), weight.size(0), bias=layer.bias is not None).to(weight)
    with torch.no_grad():
        new_layer.weight.copy_(weight)
        if layer.bias is not None:
            new_layer.bias.copy_(layer.bias[index] if dim == 0 else layer.bias)
    return new_layer


class BertAttention(nn.Module):
    """BERT self-attention with output layer, head masking and head pruning.

    Args of forward:
        hidden_states: (batch, seq, hidden)
        attention_mask: (batch, seq), 1 for tokens and 0 for padding
        head_mask: (heads,), 1 keeps a head and 0 silences it; counts the heads that are left
        output_attentions: also return the attention probabilities (batch, heads, seq, seq)
    """

    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        attention_probs_dropout_prob: float = 0.1,
        hidden_dropout_prob: float = 0.1,
        layer_norm_eps: float = 1e-12,
    ):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError("hidden_size must be a multiple of num_attention_heads")
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.attn_dropout = nn.Dropout(attention_probs_dropout_prob)
        self.out_dropout = nn.Dropout(hidden_dropout_prob)
        # numbers of the heads in the layer as constructed
        self.remaining_heads = list(range(num_attention_heads))

    def prune_heads(self, heads: Iterable[int]) -> None:
        """Remove heads, numbered as at construction; heads already gone are ignored."""
        heads = set(heads) & set(self.remaining_heads)
        if not heads:
            return
        keep = [i for i, head in enumerate(self.remaining_heads) if head not in heads]
        if not keep:
            raise ValueError("cannot prune all heads of a layer")
        size = self.attention_head_size
        index = torch.cat([torch.arange(i * size, (i + 1) * size) for i in keep])
        self.query = prune_linear_layer(self.query, index)
        self.key = prune_linear_layer(self.key, index)
        self.value = prune_linear_layer(self.value, index)
        self.dense = prune_linear_layer(self.dense, index, dim=1)
        self.remaining_heads = [self.remaining_heads[i] for i in keep]
        self.num_attention_heads = len(keep)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, ...]:
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        scores = torch.matmul(query_layer, key_layer.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            padding = attention_mask[:, None, None, :] == 0
            scores = scores.masked_fill(padding, torch.finfo(scores.dtype).min)

        # this drops entire tokens to attend to, as in the original Transformer paper
        probs = self.attn_dropout(nn.functional.softmax(scores, dim=-1))
        if head_mask is not None:
            probs = probs * head_mask.to(probs.dtype).view(1, -1, 1, 1)

        context = torch.matmul(probs, value_layer).permute(0, 2, 1, 3).flatten(2)
        output = self.LayerNorm(self.out_dropout(self.dense(context)) + hidden_states)
        return (output, probs) if output_attentions else (output,)
