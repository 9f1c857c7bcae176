from typing import Optional

import torch
import torch.nn as nn


class CrossAttention(nn.Module):
    r"""
    Attention layer of a latent-diffusion U-Net.

    Parameters:
        query_dim (`int`): channels of the hidden states.
        cross_attention_dim (`int`, *optional*): channels of `encoder_hidden_states`, defaults to `query_dim`.
        heads (`int`): number of heads.
        dim_head (`int`): channels per head.
        dropout (`float`): dropout on the output projection.
        norm_num_groups (`int`, *optional*): group norm over the hidden states when given.
        upcast_attention (`bool`): compute the scores in float32.
        rescale_output_factor (`float`): the result is divided by this.
        residual_connection (`bool`): add the input before rescaling.
    """

    def __init__(
        self,
        query_dim: int = 64,
        cross_attention_dim: Optional[int] = None,
        heads: int = 4,
        dim_head: int = 16,
        dropout: float = 0.0,
        bias: bool = False,
        norm_num_groups: Optional[int] = None,
        upcast_attention: bool = False,
        rescale_output_factor: float = 1.0,
        residual_connection: bool = False,
    ):
        super().__init__()
        inner_dim = dim_head * heads
        cross_attention_dim = cross_attention_dim if cross_attention_dim is not None else query_dim
        self.heads = heads
        self.scale = dim_head**-0.5
        self.upcast_attention = upcast_attention
        self.rescale_output_factor = rescale_output_factor
        self.residual_connection = residual_connection

        self.group_norm = nn.GroupNorm(norm_num_groups, query_dim, eps=1e-5) if norm_num_groups is not None else None
        self.to_q = nn.Linear(query_dim, inner_dim, bias=bias)
        self.to_k = nn.Linear(cross_attention_dim, inner_dim, bias=bias)
        self.to_v = nn.Linear(cross_attention_dim, inner_dim, bias=bias)
        self.to_out = nn.ModuleList([nn.Linear(inner_dim, query_dim), nn.Dropout(dropout)])

    def head_to_batch_dim(self, tensor: torch.Tensor) -> torch.Tensor:
        b, s, d = tensor.shape
        tensor = tensor.reshape(b, s, self.heads, d // self.heads)
        return tensor.permute(0, 2, 1, 3).reshape(b * self.heads, s, d // self.heads)

    def batch_to_head_dim(self, tensor: torch.Tensor) -> torch.Tensor:
        bh, s, d = tensor.shape
        tensor = tensor.reshape(bh // self.heads, self.heads, s, d)
        return tensor.permute(0, 2, 1, 3).reshape(bh // self.heads, s, d * self.heads)

    def prepare_attention_mask(self, mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        bias = (1.0 - mask.to(dtype)) * -10000.0
        return bias[:, None, :].repeat_interleave(self.heads, dim=0)

    def get_attention_scores(self, query, key, bias):
        dtype = query.dtype
        if self.upcast_attention:
            query, key = query.float(), key.float()
        if bias is None:
            base = torch.empty(query.shape[0], query.shape[1], key.shape[1], dtype=query.dtype, device=query.device)
            beta = 0
        else:
            base = bias.to(query.dtype).expand(-1, query.shape[1], -1)
            beta = 1
        scores = torch.baddbmm(base, query, key.transpose(-1, -2), beta=beta, alpha=self.scale)
        return scores.softmax(dim=-1).to(dtype)

    def forward(
        self,
        hidden_states: torch.Tensor,
        encoder_hidden_states: Optional[torch.Tensor] = None,
        attention_mask: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """`hidden_states` is `(B, N, C)` or `(B, C, H, W)`; `attention_mask` is `(B, S)` over the keys, 1 = attend."""
        residual = hidden_states
        input_ndim = hidden_states.ndim
        if input_ndim == 4:
            batch, channel, height, width = hidden_states.shape
            hidden_states = hidden_states.flatten(2).transpose(1, 2)

        if self.group_norm is not None:
            hidden_states = self.group_norm(hidden_states.transpose(1, 2)).transpose(1, 2)
        if encoder_hidden_states is None:
            encoder_hidden_states = hidden_states

        query = self.head_to_batch_dim(self.to_q(hidden_states))
        key = self.head_to_batch_dim(self.to_k(encoder_hidden_states))
        value = self.head_to_batch_dim(self.to_v(encoder_hidden_states))

        bias = None
        if attention_mask is not None:
            bias = self.prepare_attention_mask(attention_mask, query.dtype)
        probs = self.get_attention_scores(query, key, bias)
        hidden_states = self.batch_to_head_dim(torch.bmm(probs, value))

        for layer in self.to_out:
            hidden_states = layer(hidden_states)
        if input_ndim == 4:
            hidden_states = hidden_states.transpose(1, 2).reshape(batch, channel, height, width)
        if self.residual_connection:
            hidden_states = hidden_states + residual
        return hidden_states / self.rescale_output_factor
