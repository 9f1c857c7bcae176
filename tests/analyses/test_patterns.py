"""Pattern scores of heads that do one thing only, and of any head against diagonals written out."""

from __future__ import annotations

import math

import pytest
import torch

import headwise
from headwise import masks
from headwise.analyses import pattern_scores, repeated_block
from headwise.errors import ArgumentError, RecordError
from tests.analyses.dense import attending, tiny_encoder, tiny_records

close = torch.testing.assert_close


def test_a_head_by_hand_which_rows_count() -> None:
    # T = 2: rows 2 and 3 are the second block. Only these cells are looked at, each given a weight of its own.
    a = torch.zeros(4, 4, dtype=torch.float64)
    a[1, 0], a[2, 1], a[3, 2] = 0.1, 0.2, 0.6  # one back: rows 1, 2, 3; for T = 2 the induction cells of rows 2, 3
    a[2, 0], a[3, 1] = 0.5, 0.3  # two back: rows 2, 3
    a[:, 3] = 1.0 - a.sum(1)
    scores = pattern_scores([attending(a[None])], 2)
    close(scores.previous_token, torch.tensor([[0.3]], dtype=torch.float64))
    close(scores.duplicate_token, torch.tensor([[0.4]], dtype=torch.float64))
    close(scores.induction, torch.tensor([[0.4]], dtype=torch.float64))


@pytest.mark.parametrize("length", [1, 2, 3])
def test_any_heads_equal_the_diagonals_of_the_dense_weights(length: int, block_bytes: int) -> None:
    layers = tiny_encoder(n_layers=2, mask=masks.causal())
    scores = pattern_scores([layer.record for layer in layers], length)
    for i, layer in enumerate(layers):
        rows = range(7 - length, 7)
        previous = torch.stack([layer.weights[:, :, r, r - 1] for r in range(1, 7)]).mean((0, 1))
        duplicate = torch.stack([layer.weights[:, :, r, r - length] for r in rows]).mean((0, 1))
        induction = torch.stack([layer.weights[:, :, r, r - length + 1] for r in rows]).mean((0, 1))
        close(scores.previous_token[i], previous)
        close(scores.duplicate_token[i], duplicate)
        close(scores.induction[i], induction)


def test_an_induction_head_made_by_hand_is_found_on_a_repeated_block() -> None:
    # Keys say which token stood before them, queries which token they are: the head attends to what followed it.
    length, vocab = 8, 50
    ids = repeated_block(vocab, length, batch=3, bos=49)
    one_hot = torch.nn.functional.one_hot(ids, vocab).double()
    before = torch.cat([torch.zeros_like(one_hot[:, :1]), one_hot[:, :-1]], dim=1)
    q = torch.stack([one_hot, one_hot], dim=1) * 40
    k = torch.stack([before, one_hot], dim=1)
    _, seen = headwise.attention(q, k, k, mask=masks.causal(), scale=1.0, record=True)
    scores = pattern_scores(seen, length)
    close(scores.induction, torch.tensor([[1.0, 0.0]], dtype=torch.float64), atol=1e-6, rtol=0)
    # The other head looks for its own token, and finds it twice: here, and where it came first.
    close(scores.duplicate_token, torch.tensor([[0.0, 0.5]], dtype=torch.float64), atol=1e-6, rtol=0)


def test_repeated_block() -> None:
    ids = repeated_block(12, 6, batch=4, seed=3, bos=2, exclude=(0, 11))
    assert ids.shape == (4, 13)
    assert ids.dtype == torch.long
    assert torch.equal(ids[:, 0], torch.full((4,), 2))
    assert torch.equal(ids[:, 1:7], ids[:, 7:])
    assert all(len(set(row)) == 6 and not {0, 2, 11} & set(row) for row in ids[:, 1:7].tolist())
    assert len({tuple(row) for row in ids.tolist()}) == 4
    assert torch.equal(ids, repeated_block(12, 6, batch=4, seed=3, bos=2, exclude=(0, 11)))
    assert not torch.equal(ids, repeated_block(12, 6, batch=4, seed=4, bos=2, exclude=(0, 11)))
    assert repeated_block(3, 3).shape == (1, 6)
    state = torch.get_rng_state()
    repeated_block(9, 4)
    assert torch.equal(torch.get_rng_state(), state)


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"length=5 needs as many different ids. Received: vocab_size=5, 4 ids"):
        repeated_block(5, 5, bos=0)
    with pytest.raises(ArgumentError, match=r"must be at least 1. Received: length=0, batch=1"):
        repeated_block(5, 0)
    with pytest.raises(RecordError, match=r"the block twice, at least 8 tokens. Received: record 1 with 7"):
        pattern_scores(tiny_records(1, 8) + tiny_records(1, 7), 4)
    with pytest.raises(ArgumentError, match=r"length must be at least 1. Received: length=0"):
        pattern_scores(tiny_records(1, 8), 0)
    with pytest.raises(RecordError, match=r"one number of heads. Received: H=\[4, 2\]"):
        pattern_scores(tiny_records(1, 8) + tiny_records(1, 8, heads=2), 4)
    q, k = torch.randn(1, 2, 3, 4), torch.randn(1, 2, 8, 4)
    with pytest.raises(RecordError, match=r"pattern_scores needs as many queries as keys"):
        pattern_scores([headwise.attention(q, k, k, record=True)[1]], 2)
    assert not math.isnan(float(pattern_scores(tiny_records(1, 2), 1).induction.sum()))
