from typing import Optional, Tuple

import torch
from torch import nn


class GPTAttention(nn.Module):
    def __init__(
        self,
        hidden_size: int = 256,
        num_attention_heads: int = 8,
        max_position_embeddings: int = 512,
        attn_pdrop: float = 0.0,
        resid_pdrop: float = 0.0,
    ):
        super().__init__()
        self.embed_dim = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
        if self.head_dim * self.num_heads != self.embed_dim:
            raise ValueError("`embed_dim` must be divisible by num_heads")

        causal = torch.tril(torch.ones(max_position_embeddings, max_position_embeddings, dtype=torch.bool))
        self.register_buffer("bias", causal.view(1, 1, max_position_embeddings, max_position_embeddings), persistent=False)

        self.c_attn = nn.Linear(hidden_size, 3 * hidden_size)
        self.c_proj = nn.Linear(hidden_size, hidden_size)
        self.attn_dropout = nn.Dropout(attn_pdrop)
        self.resid_dropout = nn.Dropout(resid_pdrop)

    def _split_heads(self, tensor):
        new_shape = tensor.size()[:-1] + (self.num_heads, self.head_dim)
        return tensor.view(new_shape).permute(0, 2, 1, 3)

    def _merge_heads(self, tensor):
        tensor = tensor.permute(0, 2, 1, 3).contiguous()
        return tensor.view(tensor.size()[:-2] + (self.embed_dim,))

    def _attn(self, query, key, value, attention_mask=None, head_mask=None):
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (self.head_dim ** 0.5)

        # Mask heads if we want to
        if head_mask is not None:
            attn_weights = attn_weights * head_mask

        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = self.bias[:, :, key_length - query_length : key_length, :key_length]
        mask_value = torch.finfo(attn_weights.dtype).min
        attn_weights = attn_weights.masked_fill(~causal_mask, mask_value)
        if attention_mask is not None:
            attn_weights = attn_weights.masked_fill(attention_mask[:, None, None, :] == 0, mask_value)

        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_weights = self.attn_dropout(attn_weights)
        return torch.matmul(attn_weights, value), attn_weights

    def forward(
        self,
        hidden_states: torch.Tensor,
        attention_mask: Optional[torch.Tensor] = None,
        head_mask: Optional[torch.Tensor] = None,
        layer_past: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ):
        """
        attention_mask: (batch, key_length), 1 for tokens that are not padding.
        head_mask: (num_heads,), 1 to keep the head, 0 to prune it.
        """
        query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        query, key, value = self._split_heads(query), self._split_heads(key), self._split_heads(value)

        if layer_past is not None:
            key = torch.cat((layer_past[0], key), dim=-2)
            value = torch.cat((layer_past[1], value), dim=-2)
        present = (key, value) if use_cache else None

        if head_mask is not None:
            head_mask = head_mask.view(1, -1, 1, 1).to(query.dtype)
        attn_output, attn_weights = self._attn(query, key, value, attention_mask, head_mask)
        attn_output = self.resid_dropout(self.c_proj(self._merge_heads(attn_output)))

        outputs = (attn_output, present)
        if output_attentions:
            outputs += (attn_weights,)
        return outputs
