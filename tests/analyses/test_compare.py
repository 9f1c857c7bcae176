"""Comparisons of two runs: by hand, against the divergence written out, and aligned by tokens."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.analyses import compare
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import Seen, Site
from headwise.text import as_tokens
from tests.analyses.dense import attending, tiny_encoder, tiny_records

close = torch.testing.assert_close
LN2 = math.log(2)


def dense_jsd(p: Tensor, q: Tensor) -> Tensor:
    m = (p + q) / 2
    half = [torch.where(x > 0, x * (x / m).log(), 0.0).sum(-1) / 2 for x in (p, q)]
    return half[0] + half[1]


def test_rows_that_are_equal_apart_and_half_apart_by_hand() -> None:
    a = attending(torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.5, 0.5], [1.0, 0.0]]]))
    b = attending(torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]]]))
    found = compare(a, b)
    # (1, 0) against (1/2, 1/2): m = (3/4, 1/4), JSD = ½ ln(4/3) + ½ (½ ln(2/3) + ½ ln 2) = ½ ln(4/3) + ¼ ln(4/3)
    half = 0.75 * math.log(4 / 3)
    close(found.row_divergence[0], torch.tensor([[0.0, LN2], [0.0, half]], dtype=torch.float64))
    close(found.divergence[0], torch.tensor([LN2 / 2, half / 2], dtype=torch.float64))
    close(found.total_variation[0], torch.tensor([0.5, 0.25], dtype=torch.float64))
    assert found.rows.tolist() == found.keys.tolist() == [[0, 0], [1, 1]]


def test_tokens_are_aligned_and_the_others_are_keys_of_their_own() -> None:
    # "the cat sat" and "the old cat sat": the (0, 0), cat (1, 2), sat (2, 3). Only the second has "old".
    a = attending(torch.tensor([[[0.6, 0.4, 0.0], [0.2, 0.3, 0.5], [0.0, 0.0, 1.0]]]))
    b = attending(torch.tensor([[[0.6, 0.0, 0.4, 0.0], [0.25] * 4, [0.2, 0.1, 0.3, 0.4], [0.0, 1.0, 0.0, 0.0]]]))
    found = compare(a, b, ["the", "cat", "sat"], ["the", "old", "cat", "sat"])
    assert found.rows.tolist() == found.keys.tolist() == [[0, 0], [1, 2], [2, 3]]
    p = torch.tensor([[0.6, 0.4, 0.0, 0.0], [0.2, 0.3, 0.5, 0.0], [0.0, 0.0, 1.0, 0.0]], dtype=torch.float64)
    q = torch.tensor([[0.6, 0.4, 0.0, 0.0], [0.2, 0.3, 0.4, 0.1], [0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    close(found.row_divergence[0, 0], dense_jsd(p, q), rtol=1e-6, atol=1e-7)
    close(found.row_divergence[0, 0, [0, 2]], torch.tensor([0.0, LN2], dtype=torch.float64), rtol=1e-6, atol=1e-7)
    close(found.total_variation[0], torch.tensor([1.1 / 3], dtype=torch.float64), rtol=1e-6, atol=1e-7)
    labelled = compare(a, b, as_tokens(["the", "cat", "sat"])[0], [["the", "old", "cat", "sat"]])
    assert torch.equal(labelled.row_divergence, found.row_divergence)


def test_a_replaced_key_is_no_agreement() -> None:
    a, b = list("abpca"), list("abrca")  # p is replaced by r; each row looks at the middle, the replaced one too
    middle = attending(torch.nn.functional.one_hot(torch.full((1, 5), 2), 5).double())
    found = compare(middle, middle, a, b)
    assert found.rows.tolist() == [[i, i] for i in (0, 1, 3, 4)]
    close(found.row_divergence, torch.full((1, 1, 4), LN2, dtype=torch.float64))
    close(found.total_variation, torch.ones(1, 1, dtype=torch.float64))
    found = compare(middle, middle, a, b, align="positions")
    assert found.rows.tolist() == found.keys.tolist() == [[i, i] for i in range(5)]
    close(found.row_divergence, torch.zeros(1, 1, 5, dtype=torch.float64))


def test_is_symmetric_bounded_and_zero_for_the_same_run(block_bytes: int) -> None:
    one, other = (tiny_encoder(n_layers=1, mask=masks.causal())[0].record for _ in range(2))
    there, back = compare(one, other), compare(other, one)
    close(there.divergence, back.divergence)
    assert torch.equal(compare(one, one).row_divergence, torch.zeros(2, 4, 7, dtype=torch.float64))
    assert 0 < float(there.row_divergence.max()) <= LN2
    assert float(there.total_variation.max()) <= 1.0


def test_equals_the_divergence_written_out(block_bytes: int) -> None:
    one = tiny_encoder(n_layers=1, length=7)[0]
    other = tiny_encoder(n_layers=1, length=9, mask=masks.causal())[0]
    found = compare(one.record, other.record, list("abcdefg"), list("xabcdyefz"))
    pairs = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 6), (5, 7)]
    assert [tuple(pair) for pair in found.rows.tolist()] == pairs
    distributions = []
    for layer, side in ((one, 0), (other, 1)):
        places = {key: place for place, key in enumerate(pair[side] for pair in pairs)}
        union = torch.zeros(*layer.weights.shape[:2], len(pairs), 22, dtype=layer.weights.dtype)
        for key in range(layer.weights.shape[-1]):  # what only one of them has is far from what only the other has
            union[..., places.get(key, 7 * side + 6 + key)] += layer.weights[:, :, list(places), key]
        distributions.append(union)
    p, q = distributions
    close(found.row_divergence, dense_jsd(p, q))
    close(found.divergence, dense_jsd(p, q).mean(-1))
    close(found.total_variation, (p - q).abs().sum(-1).mean(-1) / 2)


def test_a_sink_and_a_row_that_attends_to_nothing_are_the_rest() -> None:
    q = torch.zeros(1, 1, 2, 1, dtype=torch.float64)
    _, plain = headwise.attention(q, q, q, record=True)
    _, sunk = headwise.attention(q, q, q, sinks=torch.tensor([60.0], dtype=torch.float64), record=True)
    _, empty = headwise.attention(q, q, q, mask=masks.lengths(0), record=True)
    for other in (sunk, empty):
        close(compare(plain, other).row_divergence, torch.full((1, 1, 2), LN2, dtype=torch.float64))
    close(compare(sunk, empty).row_divergence, torch.zeros(1, 1, 2, dtype=torch.float64))
    assert torch.equal(compare(empty, empty).divergence, torch.zeros(1, 1, dtype=torch.float64))


def test_small_differences_are_exact_in_float32() -> None:
    q, k = torch.randn(1, 2, 40, 8), torch.randn(1, 2, 40, 8)
    one, other = (headwise.attention(q, x, x, record=True)[1] for x in (k, k + 1e-3 * torch.randn_like(k)))
    found = compare(one, other).divergence
    exact = dense_jsd(one.weights().double(), other.weights().double()).mean(-1)
    assert found.dtype == torch.float32
    assert float(exact.max()) < 1e-6
    close(found.double(), exact, rtol=0.05, atol=0)


def test_two_runs_are_compared_layer_by_layer() -> None:
    one, other = [layer.record for layer in tiny_encoder()], [layer.record for layer in tiny_encoder()]
    found = compare(Seen(one), Seen(other))
    assert len(found) == 3
    for i, comparison in enumerate(found):
        assert torch.equal(comparison.divergence, compare(one[i], other[i]).divergence)
    tokens = list("abcdefg")
    assert len(compare(one, other, tokens, tokens)[1].rows) == 7


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r'align must be "tokens" or "positions". Received: align=.rows'):
        compare(tiny_records(1, 3)[0], tiny_records(1, 3)[0], align="rows")  # type: ignore[call-overload]
    one, longer, wider = tiny_records(1, 3)[0], tiny_records(1, 4)[0], tiny_records(1, 3, heads=2)[0]
    with pytest.raises(RecordError, match=r"by position.*same Q and K.*a=\[3, 3\], b=\[4, 4\]. Pass tokens_a="):
        compare(one, longer)
    with pytest.raises(RecordError, match=r"Received: the records with a=\[1, 4\], b=\[1, 2\]"):
        compare(one, wider)
    with pytest.raises(RecordError, match=r"same B and H in both. Received: records 1 with"):
        compare([one, one], [one, wider])
    with pytest.raises(ArgumentError, match=r"the same number of layers in both. Received: len\(a\)=2, len\(b\)=1"):
        compare([one, one], [one])
    with pytest.raises(DtypeError, match=r"Received: a=AttentionRecord, b=list"):
        compare(one, [one])  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match=r"the tokens of both runs, or of neither. Received: tokens_b=None"):
        compare(one, one, ["a", "b", "c"])
    with pytest.raises(RecordError, match=r"one for each query and key.*3 tokens, Q=4, K=4"):
        compare(one, longer, list("abc"), list("abc"))
    with pytest.raises(RecordError, match=r"those of one example, or of all 1. Received: len\(tokens\)=2"):
        compare(one, one, list("abc"), [list("abc"), list("abc")])
    with pytest.raises(ArgumentError, match=r"at least one token in common. Received: the records, which have none"):
        compare(one, longer, list("abc"), list("wxyz"))
    with pytest.raises(DtypeError, match=r"tokens: expected the output of a fast tokenizer"):
        compare(one, one, "abc", "abc")
    for example in (1, -2):
        with pytest.raises(ArgumentError, match=r"example must lie in 0 … 0"):
            compare(one, one, example=example)
    with pytest.raises(ArgumentError, match=r"example must be one of the batch. Received: example=\[\], B=1"):
        compare(one, one, example=[])  # type: ignore[call-overload]


def test_the_tokens_of_two_seens_are_used() -> None:
    one, other = tiny_encoder(n_layers=2, length=4), tiny_encoder(n_layers=2, length=5)
    a, b = Seen([layer.record for layer in one]), Seen([layer.record for layer in other])
    a.tokens = [list("abcd"), list("abcd")]
    with pytest.raises(ArgumentError, match=r"Received: tokens_b=None"):
        compare(a, b)
    b.tokens = [list("abxcd"), list("xabcd")]
    with pytest.raises(ArgumentError, match=r"aligned differently. Received: example=None. Choose one"):
        compare(a, b)
    for example, places in ((0, [0, 1, 3, 4]), (-1, [1, 2, 3, 4])):
        for i, found in enumerate(compare(a, b, example=example)):
            assert found.rows.tolist() == found.keys.tolist() == [[k, place] for k, place in enumerate(places)]
            # All the keys of a have one in b, which has one more.
            p = torch.nn.functional.pad(one[i].weights[[example]], (0, 1))
            q = other[i].weights[[example]][:, :, places]
            left_out = next(k for k in range(5) if k not in places)
            q = torch.cat([q[..., places], q[..., [left_out]]], dim=-1)
            close(found.row_divergence, dense_jsd(p, q))
            assert found.divergence.shape == (1, 4)
    b.tokens = [list("abxcd"), list("abxcd")]
    assert compare(a, b)[0].divergence.shape == (2, 4)


def test_cross_attention_is_aligned_on_both_sides() -> None:
    def run(source: str, target: str) -> Seen:
        q, k = torch.randn(1, 2, len(target), 4), torch.randn(1, 2, len(source), 4)
        _, record = headwise.attention(q, k, k, record=True)
        record.site = Site("decoder.0.cross", 0, "cross", False, 2, 2)
        seen = Seen([record])
        seen.tokens = {"source": [list(source)], "target": [list(target)]}
        return seen

    (found,) = compare(run("abc", "xy"), run("bca", "zxy"))
    assert found.rows.tolist() == [[0, 1], [1, 2]]
    assert found.keys.tolist() == [[1, 0], [2, 1]]
