import math

import torch
import torch.nn as nn


class BertSelfAttention(nn.Module):
    """BERT self-attention.

    ``attention_mask`` is the *extended* mask produced by ``get_extended_mask``: a float tensor
    that broadcasts to (batch, heads, query, key), 0.0 for visible positions and a large negative
    number for the others. If a raw 2D 1/0 mask is passed, it is extended first.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, attention_probs_dropout_prob=0.1):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = hidden_size
        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    @staticmethod
    def get_extended_mask(mask, dtype):
        extended = mask[:, None, None, :].to(dtype)
        return (1.0 - extended) * torch.finfo(dtype).min

    def transpose_for_scores(self, x):
        new_shape = x.size()[:-1] + (self.num_attention_heads, self.attention_head_size)
        return x.view(new_shape).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None, head_mask=None, output_attentions=False):
        q = self.transpose_for_scores(self.query(hidden_states))
        k = self.transpose_for_scores(self.key(hidden_states))
        v = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            if attention_mask.dim() == 2:
                attention_mask = self.get_extended_mask(attention_mask, attention_scores.dtype)
            attention_scores = attention_scores + attention_mask

        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        # This drops entire tokens to attend to, as in the original Transformer paper.
        attention_probs = self.dropout(attention_probs)
        if head_mask is not None:
            attention_probs = attention_probs * head_mask

        context = torch.matmul(attention_probs, v)
        context = context.permute(0, 2, 1, 3).contiguous()
        context = context.view(context.size()[:-2] + (self.all_head_size,))
        # the dense output projection lives in BertSelfOutput
        return (context, attention_probs) if output_attentions else (context,)
