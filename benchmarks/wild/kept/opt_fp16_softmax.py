"""In half precision the mask value plus negative scores overflows to -inf, and fully masked rows become NaN.

huggingface/transformers #17437 (2022)
https://github.com/huggingface/transformers/pull/17437
"""
from typing import Optional

import torch
from torch import nn


class _OPTAttentionBase(nn.Module):
    """Multi-headed attention from 'Attention Is All You Need' paper"""

    def __init__(self, embed_dim: int, num_heads: int, bias: bool = True):
        super().__init__()
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scaling = self.head_dim ** -0.5
        self.k_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.q_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)

    def _prepare_decoder_attention_mask(self, attention_mask, tgt_len, dtype):
        min_value = torch.finfo(dtype).min
        causal = torch.full((tgt_len, tgt_len), min_value, dtype=dtype).triu(1)[None, None]
        padding = torch.zeros(attention_mask.shape, dtype=dtype).masked_fill(attention_mask == 0, min_value)
        return torch.max(causal + padding[:, None, None, :], torch.tensor(min_value, dtype=dtype))

    def forward(self, hidden_states: torch.Tensor, attention_mask: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Input shape: Batch x Time x Channel; attention_mask: Batch x Time, 1 for tokens and 0 for (left) padding.

        The layer is run in float32 or, for inference, in float16.
        """
        bsz, tgt_len, _ = hidden_states.size()
        if attention_mask is None:
            attention_mask = torch.ones(bsz, tgt_len, dtype=torch.long)
        mask = self._prepare_decoder_attention_mask(attention_mask, tgt_len, hidden_states.dtype)
        shape = lambda t: t.view(bsz, tgt_len, self.num_heads, self.head_dim).transpose(1, 2)
        query_states = shape(self.q_proj(hidden_states) * self.scaling)
        key_states, value_states = shape(self.k_proj(hidden_states)), shape(self.v_proj(hidden_states))
        attn_weights = torch.matmul(query_states, key_states.transpose(2, 3))
        attn_probs = self.probs(attn_weights, mask)
        attn_output = torch.matmul(attn_probs, value_states).transpose(1, 2)
        return self.out_proj(attn_output.reshape(bsz, tgt_len, self.embed_dim))


def broken() -> nn.Module:
    class OPTAttention(_OPTAttentionBase):
        def probs(self, attn_weights, attention_mask):
            attn_weights = attn_weights + attention_mask
            return nn.functional.softmax(attn_weights, dim=-1)

    torch.manual_seed(0)
    return OPTAttention(32, 2).half()


def fixed() -> nn.Module:
    class OPTAttention(_OPTAttentionBase):
        def probs(self, attn_weights, attention_mask):
            attn_weights = attn_weights + attention_mask
            attn_weights = torch.max(attn_weights, torch.tensor(torch.finfo(attn_weights.dtype).min,
                                                                dtype=attn_weights.dtype))
            return nn.functional.softmax(attn_weights, dim=-1, dtype=torch.float32).to(attn_weights.dtype)

    torch.manual_seed(0)
    return OPTAttention(32, 2).half()


def example():
    g = torch.Generator().manual_seed(2)
    x = (torch.randn(1, 1, 32, generator=g) * 8 + torch.randn(2, 8, 32, generator=g)).half()
    mask = torch.ones(2, 8, dtype=torch.long)
    mask[1, :3] = 0
    return (x,), {"attention_mask": mask}
