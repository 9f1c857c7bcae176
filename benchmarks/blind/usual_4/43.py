from typing import Optional, Tuple

import torch
import torch.nn.functional as F
from torch import nn


class OptLikeAttention(nn.Module):
    """Decoder self-attention.

    Args of forward:
        hidden_states: (batch, seq_len, embed_dim)
        attention_mask: (batch, seq_len), 1 for tokens and 0 for (right) padding
        output_attentions: also return the attention weights (batch, heads, seq_len, seq_len)
    """

    def __init__(self, embed_dim: int = 64, num_heads: int = 4, dropout: float = 0.0, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        if self.head_dim * num_heads != embed_dim:
            raise ValueError("embed_dim must be divisible by num_heads")
        self.dropout = dropout
        self.scaling = self.head_dim ** -0.5

        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _causal_mask(self, attention_mask, bsz, seq_len, device):
        mask = torch.ones(seq_len, seq_len, dtype=torch.bool, device=device).tril()
        mask = mask[None, None].expand(bsz, 1, -1, -1)
        if attention_mask is not None:
            mask = mask & attention_mask.bool()[:, None, None, :]
        return mask

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        output_attentions: bool = False,
    ) -> Tuple[torch.Tensor, Optional[torch.Tensor]]:
        bsz, seq_len, _ = hidden_states.size()

        def shape(t):
            return t.view(bsz, seq_len, self.num_heads, self.head_dim).transpose(1, 2)

        query_states = shape(self.q_proj(hidden_states))
        key_states = shape(self.k_proj(hidden_states))
        value_states = shape(self.v_proj(hidden_states))
        mask = self._causal_mask(attention_mask, bsz, seq_len, hidden_states.device)

        attn_output = F.scaled_dot_product_attention(
            query_states,
            key_states,
            value_states,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )

        attn_weights = None
        if output_attentions:
            attn_weights = torch.matmul(query_states * self.scaling, key_states.transpose(-1, -2))
            attn_weights = F.softmax(attn_weights, dim=-1, dtype=torch.float32).to(query_states.dtype)

        attn_output = attn_output.transpose(1, 2).reshape(bsz, seq_len, self.embed_dim)
        return self.out_proj(attn_output), attn_weights
