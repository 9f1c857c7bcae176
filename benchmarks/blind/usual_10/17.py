from typing import Optional, Tuple

import torch
from torch import nn


class RobertaLikeAttention(nn.Module):
    """
    Multi-head self-attention with output projection, residual and layer norm.

    Args:
        hidden_size (`int`): width of the encoder.
        num_attention_heads (`int`): number of heads.
        dropout (`float`): dropout of the probabilities and of the output.
    """

    def __init__(self, hidden_size=64, num_attention_heads=4, dropout=0.1, layer_norm_eps=1e-12):
        super().__init__()
        self.num_attention_heads = num_attention_heads
        self.head_size = hidden_size // num_attention_heads
        self.query = nn.Linear(hidden_size, hidden_size)
        self.key = nn.Linear(hidden_size, hidden_size)
        self.value = nn.Linear(hidden_size, hidden_size)
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.LayerNorm = nn.LayerNorm(hidden_size, eps=layer_norm_eps)
        self.attn_dropout = nn.Dropout(dropout)
        self.dropout = nn.Dropout(dropout)

    def _shape(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        return x.view(b, t, self.num_attention_heads, self.head_size).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        r"""
        attention_mask (`torch.LongTensor` of shape `(batch, seq)`, *optional*):
            1 for tokens that are **not masked**, 0 for tokens that are **masked**.
        output_attentions (`bool`):
            whether to return the attention weights (after the softmax) of every head, shape
            `(batch, heads, seq, seq)`.
        """
        residual = hidden_states
        q = self._shape(self.query(hidden_states))
        k = self._shape(self.key(hidden_states))
        v = self._shape(self.value(hidden_states))

        attn_weights = torch.matmul(q, k.transpose(-1, -2)) * self.head_size ** -0.5
        if attention_mask is not None:
            keep = attention_mask[:, None, None, :].bool()
            attn_weights = attn_weights.masked_fill(~keep, torch.finfo(attn_weights.dtype).min)
        attn_probs = self.attn_dropout(attn_weights.softmax(dim=-1))

        context = torch.matmul(attn_probs, v)
        context = context.transpose(1, 2).reshape(residual.shape)
        output = self.LayerNorm(self.dropout(self.dense(context)) + residual)
        return output, (attn_weights if output_attentions else None)
