"""Keras' own attention layers, on torch."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases


def cases() -> Cases:
    from keras import layers

    x, context = torch.randn(2, 6, 32), torch.randn(2, 9, 24)

    def make(name: str, *args: Any, given: dict[str, Any], **options: Any) -> Case:
        layer = getattr(layers, name)(*args, **options)
        layer(**given)
        return layer, given

    own, other = {"query": x, "value": x}, {"query": x, "value": context}
    one = {"inputs": [x, x]}
    return {
        "MultiHeadAttention": lambda: make("MultiHeadAttention", 4, 8, given=own),
        "MultiHeadAttention, cross": lambda: make("MultiHeadAttention", 4, 8, given=other),
        "MultiHeadAttention, causal": lambda: make("MultiHeadAttention", 4, 8, given={**own, "use_causal_mask": True}),
        "MultiHeadAttention, padded": lambda: make(
            "MultiHeadAttention",
            4,
            8,
            given={**own, "attention_mask": (torch.arange(6) < 4)[None, None].expand(2, 6, 6)},
        ),
        "MultiHeadAttention, scores": lambda: make(
            "MultiHeadAttention", 4, 8, given={**own, "return_attention_scores": True}
        ),
        "MultiHeadAttention, without flash": lambda: make("MultiHeadAttention", 4, 8, flash_attention=False, given=own),
        "MultiHeadAttention, several axes": lambda: make(
            "MultiHeadAttention",
            2,
            4,
            attention_axes=(1, 2),
            given=dict.fromkeys(("query", "value"), torch.randn(2, 3, 4, 16)),
        ),
        "GroupQueryAttention": lambda: make("GroupQueryAttention", 8, 4, 2, given=own),
        "Attention": lambda: make("Attention", given=one),
        "Attention, causal": lambda: make("Attention", given={**one, "use_causal_mask": True}),
        "Attention, concat": lambda: make("Attention", score_mode="concat", given=one),
        "Attention, scaled": lambda: make("Attention", use_scale=True, given=one),
        "AdditiveAttention": lambda: make("AdditiveAttention", given=one),
    }
