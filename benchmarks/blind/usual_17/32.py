import torch
import torch.nn as nn


class MaskedMHA(nn.Module):
    """Thin wrapper so that our masks (True = valid, as in the JAX code base) work with
    nn.MultiheadAttention (True = ignore)."""

    def __init__(self, dim=64, num_heads=4, dropout=0.0):
        super().__init__()
        self.mha = nn.MultiheadAttention(dim, num_heads, dropout=dropout, batch_first=True)

    def forward(self, query, context=None, context_valid=None, pair_valid=None, return_weights=False):
        """
        query:         (B, Q, dim)
        context:       (B, K, dim), defaults to query
        context_valid: bool (B, K), True = valid
        pair_valid:    bool (Q, K), True = query may look at key
        Returned weights are averaged over heads, (B, Q, K).
        """
        context = query if context is None else context
        out, weights = self.mha(
            query,
            context,
            context,
            key_padding_mask=None if context_valid is None else context_valid.logical_not(),
            attn_mask=None if pair_valid is None else pair_valid.logical_not(),
            need_weights=return_weights,
        )
        if return_weights:
            return out, weights
        return out
