from typing import Optional, Tuple, Union

import torch
from torch import nn


class DecoderSelfAttention(nn.Module):
    """GPT-2 like attention layer.

    With ``use_cache=True`` the key/value states of all tokens so far are returned; give
    them back as ``past_key_values`` together with the new tokens.
    """

    def __init__(self, hidden_size: int = 64, num_attention_heads: int = 4,
                 attn_pdrop: float = 0.1, resid_pdrop: float = 0.1):
        super().__init__()
        if hidden_size % num_attention_heads != 0:
            raise ValueError(
                f"`hidden_size` must be divisible by `num_attention_heads` "
                f"(got {hidden_size} and {num_attention_heads})."
            )
        self.embed_dim = hidden_size
        self.num_heads = num_attention_heads
        self.head_dim = hidden_size // num_attention_heads
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

    def _attn(self, query, key, value, attention_mask=None):
        attn_weights = torch.matmul(query, key.transpose(-1, -2)) / (self.head_dim ** 0.5)

        query_length, key_length = query.size(-2), key.size(-2)
        causal_mask = torch.ones(query_length, key_length, dtype=torch.bool, device=query.device)
        causal_mask = causal_mask.tril(diagonal=key_length - query_length)
        mask_value = torch.finfo(attn_weights.dtype).min
        attn_weights = attn_weights.masked_fill(~causal_mask, mask_value)

        if attention_mask is not None:
            # additive, broadcastable to (batch, heads, query_length, key_length)
            attn_weights = attn_weights + attention_mask

        attn_weights = nn.functional.softmax(attn_weights, dim=-1)
        attn_weights = self.attn_dropout(attn_weights.type(value.dtype))
        return torch.matmul(attn_weights, value), attn_weights

    def forward(
        self,
        hidden_states: torch.FloatTensor,
        past_key_values: Optional[Tuple[torch.Tensor, torch.Tensor]] = None,
        attention_mask: Optional[torch.FloatTensor] = None,
        use_cache: bool = False,
        output_attentions: bool = False,
    ) -> Tuple[Union[torch.Tensor, Tuple[torch.Tensor, torch.Tensor]], ...]:
        query, key, value = self.c_attn(hidden_states).split(self.embed_dim, dim=2)
        query = self._split_heads(query)
        key = self._split_heads(key)
        value = self._split_heads(value)

        present = (key, value) if use_cache else None

        if past_key_values is not None:
            past_key, past_value = past_key_values
            key = torch.cat((past_key, key), dim=-2)
            value = torch.cat((past_value, value), dim=-2)

        attn_output, attn_weights = self._attn(query, key, value, attention_mask)
        attn_output = self.resid_dropout(self.c_proj(self._merge_heads(attn_output)))

        outputs = (attn_output, present)
        if output_attentions:
            outputs += (attn_weights,)
        return outputs
