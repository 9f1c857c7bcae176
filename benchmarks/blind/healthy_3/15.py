from typing import Optional, Tuple, Union

import torch
from torch import Tensor, nn


class CrossAttentionBlock(nn.Module):
    """Pre-norm cross-attention followed by a gated feed-forward, around ``nn.MultiheadAttention``.

    Args:
        dim: width of the queries and of the output.
        context_dim: width of the context, ``dim`` if not given.
        num_heads: attention heads.
        zero_init_gate: start as the identity, so that the block can be put in a trained model.
    """

    def __init__(
        self,
        dim: int = 256,
        num_heads: int = 8,
        context_dim: Optional[int] = None,
        dropout: float = 0.0,
        zero_init_gate: bool = False,
    ) -> None:
        super().__init__()
        context_dim = dim if context_dim is None else context_dim
        self.norm_q = nn.LayerNorm(dim)
        self.norm_ctx = nn.LayerNorm(context_dim)
        self.attn = nn.MultiheadAttention(
            dim, num_heads, dropout=dropout, kdim=context_dim, vdim=context_dim, batch_first=True
        )
        self.norm_ff = nn.LayerNorm(dim)
        self.ff = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Dropout(dropout), nn.Linear(4 * dim, dim))
        start = 0.0 if zero_init_gate else 1.0
        self.gate_attn = nn.Parameter(torch.full((1,), start))
        self.gate_ff = nn.Parameter(torch.full((1,), start))

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        context_mask: Optional[Tensor] = None,
        return_weights: bool = False,
    ) -> Union[Tensor, Tuple[Tensor, Tensor]]:
        """
        Args:
            x: (batch, queries, dim)
            context: (batch, tokens, context_dim)
            context_mask: (batch, tokens), True/1 for tokens that are present. A sample without any
                token gets nothing from the context.
            return_weights: also return the weights (batch, queries, tokens), averaged over heads.
        """
        key_padding_mask = None
        has_context = None
        if context_mask is not None:
            present = context_mask.bool()
            has_context = present.any(dim=1)
            # empty samples attend to everything and are cancelled below: softmax of nothing is NaN
            key_padding_mask = ~(present | ~has_context.unsqueeze(1))

        ctx = self.norm_ctx(context)
        y, weights = self.attn(
            self.norm_q(x), ctx, ctx,
            key_padding_mask=key_padding_mask,
            need_weights=return_weights,
        )
        if has_context is not None:
            y = y.masked_fill(~has_context[:, None, None], 0.0)
            if weights is not None:
                weights = weights.masked_fill(~has_context[:, None, None], 0.0)

        x = x + self.gate_attn * y
        x = x + self.gate_ff * self.ff(self.norm_ff(x))
        if return_weights:
            return x, weights
        return x
