"""The sink rate, by hand and against the formula written out."""

from __future__ import annotations

import pytest
import torch

import headwise
from headwise import masks
from headwise.analyses import key_zero_rate
from headwise.errors import ArgumentError, RecordError
from tests.analyses.dense import attending, tiny_encoder, tiny_records

close = torch.testing.assert_close


def test_two_heads_by_hand() -> None:
    # α of the first token: (1 + 0.2 + 0.3) / 3 and (1 + 0 + 0) / 3; of the second: (0.8 + 0.1) / 2 and (1 + 0) / 2.
    a = torch.tensor(
        [[[1.0, 0.0, 0.0], [0.2, 0.8, 0.0], [0.3, 0.1, 0.6]], [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]]
    )
    seen = attending(a)
    rates = {(0, 0.3): 1.0, (0, 0.4): 0.5, (0, 0.6): 0.0, (1, 0.4): 1.0, (1, 0.48): 0.5, (2, 0.7): 0.5}
    for (key, threshold), expected in rates.items():
        close(key_zero_rate([seen], key=key, threshold=threshold), torch.tensor([expected], dtype=torch.float64))
    # The mean over layers of the mean over heads: a layer of one head counts as much as one of two.
    close(key_zero_rate([seen, attending(a[:1])], threshold=0.4), torch.tensor([0.75], dtype=torch.float64))


@pytest.mark.parametrize("mask", [None, masks.causal(), masks.lengths([7, 3])], ids=["full", "causal", "padding"])
def test_equals_the_formula_for_each_example(mask: masks.Mask | None, block_bytes: int) -> None:
    layers = tiny_encoder(n_layers=3, mask=mask)
    for key in (0, 2, 6):
        for threshold in (0.1, 0.2, 0.3):
            alpha = torch.stack([layer.weights[:, :, key:, key].sum(-1) / (7 - key) for layer in layers])  # [L, B, H]
            expected = (alpha > threshold).double().mean((0, 2))
            close(key_zero_rate([layer.record for layer in layers], key=key, threshold=threshold), expected)


def test_the_logit_of_a_sink_takes_from_every_token() -> None:
    q = torch.zeros(1, 1, 4, 2)
    _, without = headwise.attention(q, q, q, mask=masks.causal(), record=True)
    _, beside = headwise.attention(q, q, q, mask=masks.causal(), sinks=torch.tensor([2.0]), record=True)
    assert float(key_zero_rate(without)) == 1.0  # (1 + 1/2 + 1/3 + 1/4) / 4 = 0.52
    assert float(key_zero_rate(beside)) == 0.0


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"key must lie in 0 … 3, the tokens of record 1. Received: key=4"):
        key_zero_rate(tiny_records(1, 5) + tiny_records(1, 4), key=4)
    with pytest.raises(ArgumentError, match=r"key must lie in 0 … 4"):
        key_zero_rate(tiny_records(1, 5), key=-1)
    with pytest.raises(ArgumentError, match=r"key_zero_rate needs at least one record"):
        key_zero_rate([])
    q = torch.randn(3, 2, 5, 4)
    with pytest.raises(ArgumentError, match=r"record 1 must have the batch size of record 0 \(B=1\). Received: B=3"):
        key_zero_rate([*tiny_records(1, 5), headwise.attention(q, q, q, record=True)[1]])
    with pytest.raises(RecordError, match=r"key_zero_rate needs as many queries as keys"):
        key_zero_rate([headwise.attention(q[:, :, :2], q, q, record=True)[1]])
