import math
from typing import List, Optional, Tuple

import torch
from torch import nn


def get_slopes(n: int) -> List[float]:
    def power_of_two(m: int) -> List[float]:
        start = 2 ** (-(2 ** -(math.log2(m) - 3)))
        return [start * start**i for i in range(m)]

    if math.log2(n).is_integer():
        return power_of_two(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_two(closest) + get_slopes(2 * closest)[0::2][: n - closest]


class BertAlibiSelfAttention(nn.Module):
    """Self-attention of a bidirectional BERT-like encoder without position embeddings.

    Linear biases favour near tokens: the farther a key is from the query, on either side, the lower its logit.

    Args:
        hidden_size: model width.
        num_attention_heads: number of heads.
        attention_probs_dropout_prob: dropout on the probabilities.
    """

    def __init__(self, hidden_size: int = 128, num_attention_heads: int = 8, attention_probs_dropout_prob: float = 0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)
        self.register_buffer("slopes", torch.tensor(get_slopes(num_attention_heads)), persistent=False)

    def build_bias(self, length: int) -> torch.Tensor:
        position = torch.arange(length, device=self.slopes.device)
        distance = position[None, :] - position[:, None]
        return self.slopes[:, None, None] * distance[None]

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.shape[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None
    ) -> Tuple[torch.Tensor, torch.Tensor]:
        """``attention_mask`` is [B, T], 1 for tokens and 0 for padding. Returns the context and the probabilities."""
        query = self.transpose_for_scores(self.query(hidden_states))
        key = self.transpose_for_scores(self.key(hidden_states))
        value = self.transpose_for_scores(self.value(hidden_states))

        scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        scores = scores + self.build_bias(hidden_states.size(1)).to(scores.dtype)
        if attention_mask is not None:
            extended = (1.0 - attention_mask[:, None, None, :].to(scores.dtype)) * -10000.0
            scores = scores + extended

        probs = nn.functional.softmax(scores, dim=-1)
        context = torch.matmul(self.dropout(probs), value)
        context = context.permute(0, 2, 1, 3).flatten(2)
        return context, probs
