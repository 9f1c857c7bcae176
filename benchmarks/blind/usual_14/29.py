from typing import Optional, Tuple

import torch
import torch.nn as nn
import torch.nn.functional as F


class BartStyleAttention(nn.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.1, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim**-0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _shape(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view(tensor.shape[0], tensor.shape[1], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(
        self,
        hidden_states: torch.Tensor,
        key_value_states: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
        layer_head_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        """
        attention_mask: additive, (batch, 1, tgt_len, src_len), large negative values at masked positions.
        layer_head_mask: (num_heads,), 1 keeps a head and 0 removes it.
        """
        bsz, tgt_len, _ = hidden_states.shape
        source = hidden_states if key_value_states is None else key_value_states
        query = self._shape(self.q_proj(hidden_states) * self.scaling)
        key = self._shape(self.k_proj(source))
        value = self._shape(self.v_proj(source))

        attn_weights = torch.matmul(query, key.transpose(2, 3))
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights, dim=-1)
        if layer_head_mask is not None:
            attn_weights = layer_head_mask.view(1, -1, 1, 1) * attn_weights

        attn_probs = F.dropout(attn_weights, p=self.dropout)
        attn_output = torch.matmul(attn_probs, value)
        attn_output = attn_output.transpose(1, 2).reshape(bsz, tgt_len, self.embed_dim)
        attn_output = self.out_proj(attn_output)
        return attn_output, (attn_weights if output_attentions else None)
