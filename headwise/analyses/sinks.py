"""Attention sinks: heads that put much of their attention on one token, whatever it says."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from headwise.analyses.stack import named, self_attention
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord


def key_zero_rate(records: Iterable[AttentionRecord], key: int = 0, threshold: float = 0.3) -> Tensor:
    """Return the share of heads that put much of their attention on key 0: their mean weight on it exceeds a threshold.

    The sink metric of Gu et al. 2025, "When Attention Sink Emerges in Language Models":

        Sink_k = 1/L Σ_l 1/H Σ_h 1[α_k > ε],        α_k = 1/(T - k) Σ_{i ≥ k} A[i, k]        (k from 0, T tokens)

    as `compute_attention_sink` of sail-sg/Attention-Sink computes it. The models of the paper are causal, so that no
    row before k sees k; without a causal mask those rows are left out here, as in the formula. The paper averages over
    examples of one length (64 tokens) without padding: α falls with the length. A learned sink (the logit `sinks=`,
    gpt-oss) is not a token, and takes weight from all tokens. With padding on the left key 0 may be invisible; the
    weight on the first key that is visible is `record.first_visible()`.

    Args:
        records: a `Seen` or any sequence of self-attention records.
        key: k; another key than 0 is for comparison.
        threshold: ε; 0.3 in the paper.

    Returns:
        [B], each from 0 to 1. The mean over the examples is the number of the paper, which gives it in percent.

    Raises:
        RecordError: a record (the message names it) that is not self-attention.
        ArgumentError: no records, a record too short to have the key, or records of different batch sizes.
    """
    layers = self_attention(records, "key_zero_rate")
    found = []
    for i, record in enumerate(layers):
        batch, _, length, _ = record.shape
        if not 0 <= key < length:
            raise ArgumentError(
                f"key must lie in 0 … {length - 1}, the tokens of {named(record, i)}. Received: key={key}"
            )
        if batch != layers[0].shape[0]:
            raise ArgumentError(
                f"key_zero_rate: {named(record, i)} must have the batch size of record 0 (B={layers[0].shape[0]}). "
                f"Received: B={batch}"
            )
        alpha = record.weights(cols=key)[:, :, key:, 0].mean(-1)
        found.append((alpha > threshold).to(alpha.dtype).mean(1).to(layers[0].q.device))
    return torch.stack(found).mean(0)
