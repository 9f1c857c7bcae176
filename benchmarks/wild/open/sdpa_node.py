"""The operator's is_causal mask is aligned to the bottom-right corner although its specification says top-left.

openvinotoolkit/openvino #36680 (2026)
https://github.com/openvinotoolkit/openvino/pull/36680
"""
import torch
import torch.nn as nn


def _build(rev):
    class ScaledDotProductAttention(nn.Module):
        """forward(query, key, value, attention_mask=None) with tensors (B, H, L, E), (B, H, S, E), (B, H, S, Ev).

        Specification: attention_mask, if given, is boolean (True takes part) or additive. With is_causal the mask is
        that of torch.nn.functional.scaled_dot_product_attention: tril(ones(L, S)), i.e. query i takes part with keys
        0 .. i counted from the first key (top-left alignment), also when L != S. Otherwise scale = 1/sqrt(E).
        """

        def __init__(self, is_causal=True):
            super().__init__()
            self.is_causal = is_causal

        def forward(self, query, key, value, attention_mask=None):
            L, S = query.size(-2), key.size(-2)
            bias = torch.zeros(L, S, dtype=query.dtype, device=query.device)
            if self.is_causal:
                ncausal = S - L if rev == 1 else 0
                keep = torch.ones(L, S, dtype=torch.bool, device=query.device).tril(diagonal=ncausal)
                bias = bias.masked_fill(~keep, float("-inf"))
            elif attention_mask is not None:
                if attention_mask.dtype == torch.bool:
                    bias = bias.masked_fill(~attention_mask, float("-inf"))
                else:
                    bias = bias + attention_mask
            attn = query @ key.transpose(-2, -1) * query.size(-1) ** -0.5 + bias
            return attn.softmax(dim=-1) @ value

    torch.manual_seed(0)
    return ScaledDotProductAttention()


def broken():
    return _build(1)


def fixed():
    return _build(2)


def example():
    torch.manual_seed(1)
    return (torch.randn(2, 4, 5, 8), torch.randn(2, 4, 9, 8), torch.randn(2, 4, 9, 8)), {}
