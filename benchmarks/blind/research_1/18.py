import math
from typing import Optional, Tuple

import torch
from torch import nn


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads, attention_probs_dropout_prob):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.attention_head_size = hidden_size // num_attention_heads
        self.all_head_size = hidden_size
        self.query = nn.Linear(hidden_size, self.all_head_size)
        self.key = nn.Linear(hidden_size, self.all_head_size)
        self.value = nn.Linear(hidden_size, self.all_head_size)
        self.dropout = nn.Dropout(attention_probs_dropout_prob)

    def transpose_for_scores(self, x: torch.Tensor) -> torch.Tensor:
        x = x.view(x.size()[:-1] + (self.num_attention_heads, self.attention_head_size))
        return x.permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask=None) -> Tuple[torch.Tensor, torch.Tensor]:
        query_layer = self.transpose_for_scores(self.query(hidden_states))
        key_layer = self.transpose_for_scores(self.key(hidden_states))
        value_layer = self.transpose_for_scores(self.value(hidden_states))

        attention_scores = torch.matmul(query_layer, key_layer.transpose(-1, -2))
        attention_scores = attention_scores / math.sqrt(self.attention_head_size)
        if attention_mask is not None:
            # (precomputed for all layers in the model's forward())
            attention_scores = attention_scores + attention_mask
        attention_probs = nn.functional.softmax(attention_scores, dim=-1)
        context_layer = torch.matmul(self.dropout(attention_probs), value_layer)
        context_layer = context_layer.permute(0, 2, 1, 3).contiguous()
        return context_layer.view(context_layer.size()[:-2] + (self.all_head_size,)), attention_probs


class BertEncoder(nn.Module):
    """Post-norm encoder.

    Args:
        attention_mask (`torch.Tensor` of shape `(batch, seq)`, *optional*):
            1 for tokens that are **not masked**, 0 for tokens that are **masked**.
    Returns:
        the last hidden state and, with ``output_attentions=True``, a tuple with the weights of every layer.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, num_hidden_layers=2, intermediate_size=128,
                 hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1, layer_norm_eps=1e-12):
        super().__init__()
        self.layers = nn.ModuleList()
        for _ in range(num_hidden_layers):
            self.layers.append(nn.ModuleDict({
                "self": BertSelfAttention(hidden_size, num_attention_heads, attention_probs_dropout_prob),
                "attn_out": nn.Linear(hidden_size, hidden_size),
                "attn_norm": nn.LayerNorm(hidden_size, eps=layer_norm_eps),
                "intermediate": nn.Linear(hidden_size, intermediate_size),
                "output": nn.Linear(intermediate_size, hidden_size),
                "output_norm": nn.LayerNorm(hidden_size, eps=layer_norm_eps),
            }))
        self.dropout = nn.Dropout(hidden_dropout_prob)

    def get_extended_attention_mask(self, attention_mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        extended = attention_mask[:, None, None, :].to(dtype=dtype)
        return (1.0 - extended) * torch.finfo(dtype).min

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None,
                output_attentions: bool = False):
        if attention_mask is not None:
            attention_mask = self.get_extended_attention_mask(attention_mask, hidden_states.dtype)
        all_attentions = ()
        for layer in self.layers:
            context, probs = layer["self"](hidden_states, attention_mask)
            attention_output = layer["attn_norm"](self.dropout(layer["attn_out"](context)) + hidden_states)
            inner = nn.functional.gelu(layer["intermediate"](attention_output))
            hidden_states = layer["output_norm"](self.dropout(layer["output"](inner)) + attention_output)
            all_attentions = all_attentions + (probs,)
        if output_attentions:
            return hidden_states, all_attentions
        return hidden_states
