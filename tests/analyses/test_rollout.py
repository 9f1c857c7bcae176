"""Rollout against products written out in float64: whole, by rows, with every mask, in bounded memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import headwise
from headwise import masks
from headwise.analyses import rollout, stack
from headwise.call import make_call
from headwise.errors import ArgumentError, DtypeError, RecordError
from headwise.records import AttentionRecord, Seen, Site
from tests.analyses.dense import attending, by_hand, tiny_encoder, tiny_records, weights_of
from tests.mask_zoo import ZOO

close = torch.testing.assert_close


def dense_rollout(weights: list[Tensor], residual: float = 0.5, fuse: Any = lambda a: a.mean(1)) -> Tensor:
    """R_L of weights [B, H, N, N], lowest layer first."""
    product = torch.eye(weights[0].shape[-1], dtype=torch.float64).expand(len(weights[0]), -1, -1)
    for a in weights:
        mixed = (1 - residual) * fuse(a) + residual * torch.eye(a.shape[-1], dtype=torch.float64)
        product = mixed / mixed.sum(-1, keepdim=True).clamp(min=1e-300) @ product
    return product


def test_two_layers_of_two_tokens_by_hand() -> None:
    # Â = [[3/4, 1/4], [1/8, 7/8]], twice.
    expected = torch.tensor([[19, 13], [6.5, 25.5]], dtype=torch.float64) / 32
    close(rollout([by_hand(), by_hand()])[0], expected)
    close(rollout([by_hand()])[0], torch.tensor([[3 / 4, 1 / 4], [1 / 8, 7 / 8]], dtype=torch.float64))


def test_the_first_record_is_the_lowest_layer() -> None:
    # Above, token 1 looks at token 0 only; below, token 0 looks at token 1 only, and everything else at itself.
    above = attending(torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]))
    below = attending(torch.tensor([[[0.0, 1.0], [0.0, 1.0]]]))
    close(rollout([below, above], residual=0.0)[0], torch.tensor([[0.0, 1.0], [0.0, 1.0]], dtype=torch.float64))
    close(rollout([above, below], residual=0.0)[0], torch.tensor([[1.0, 0.0], [1.0, 0.0]], dtype=torch.float64))


def test_whole_and_rows_equal_the_dense_product(block_bytes: int) -> None:
    layers = tiny_encoder(n_layers=4)
    records, expected = [layer.record for layer in layers], dense_rollout([layer.weights for layer in layers])
    close(rollout(records), expected)
    close(rollout(Seen(records)), expected)
    close(rollout(iter(records), rows=3), expected[:, [3]])
    close(rollout(records, rows=-1), expected[:, [-1]])
    close(rollout(records, rows=[5, 0, 5]), expected[:, [5, 0, 5]])
    close(rollout(records, rows=slice(1, 6, 2)), expected[:, 1:6:2])
    close(rollout(records).sum(-1), torch.ones(2, 7, dtype=torch.float64))


@pytest.mark.parametrize("residual", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_residual_and_fusion(residual: float, heads: Any) -> None:
    layers = tiny_encoder(n_layers=2)
    fuse = {"mean": lambda a: a.mean(1), "max": lambda a: a.max(1).values, "min": lambda a: a.min(1).values}[heads]
    expected = dense_rollout([layer.weights for layer in layers], residual, fuse)
    close(rollout([layer.record for layer in layers], residual=residual, heads=heads), expected)
    if residual == 1.0:
        close(expected[0], torch.eye(7, dtype=torch.float64))


@given(st.data())
def test_any_mask(data: st.DataObject) -> None:
    names = st.sampled_from([name for name in ZOO if name != "big bird"])
    residual = data.draw(st.sampled_from([0.0, 0.5]))
    records, weights = [], []
    for _ in range(2):
        mask = ZOO[data.draw(names)](2, 4, 12, 12)
        q, k, v = (torch.randn(2, h, 12, 4, dtype=torch.float64) for h in (4, 2, 2))
        records.append(headwise.attention(q, k, v, mask=mask, record=True)[1])
        weights.append(weights_of(q, k, mask))
    expected = dense_rollout(weights, residual)
    close(rollout(records, residual=residual), expected, rtol=1e-10, atol=1e-12)
    row = data.draw(st.integers(0, 11))
    close(rollout(records, residual=residual, rows=row), expected[:, [row]], rtol=1e-10, atol=1e-12)


def test_a_row_that_attends_to_nothing_keeps_its_own_token() -> None:
    seen = attending(torch.zeros(1, 2, 2))
    assert torch.equal(rollout([seen])[0], torch.eye(2, dtype=torch.float64))
    assert torch.equal(rollout([seen], residual=0.0)[0], torch.zeros(2, 2, dtype=torch.float64))


def test_what_a_sink_takes_is_made_up_for() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    sinks = torch.tensor([1.0, 3.0], dtype=torch.float64)
    _, seen = headwise.attention(q, k, v, sinks=sinks, record=True)
    found = rollout([seen, seen])
    close(found, dense_rollout([weights_of(q, k, sinks=sinks)] * 2))
    close(found.sum(-1), torch.ones(1, 5, dtype=torch.float64))


def test_half_precision_is_computed_in_float32() -> None:
    q, k, v = (torch.randn(1, 2, 5, 4).bfloat16() for _ in range(3))
    _, seen = headwise.attention(q, k, v, record=True)
    found = rollout([seen, seen])
    assert found.dtype == torch.float32
    close(found.double(), dense_rollout([weights_of(q.double(), k.double())] * 2), rtol=1e-5, atol=1e-6)


def test_one_row_of_a_causal_stack_asks_only_for_the_rows_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    weights = AttentionRecord.weights

    def noting(self: AttentionRecord, rows: Any = None, *rest: Any) -> Tensor:
        asked.extend(rows)
        return weights(self, rows, *rest)

    monkeypatch.setattr(stack, "BLOCK_BYTES", 2**9)
    monkeypatch.setattr(AttentionRecord, "weights", noting)
    rollout(tiny_records(3, 16, mask=masks.causal()), rows=4)
    assert max(asked) <= 5  # the block that row 4 is in ends there
    assert asked[0] == 4


def test_a_record_that_does_not_fit_is_named() -> None:
    q, k, v = (torch.randn(1, 2, n, 4) for n in (5, 7, 7))
    _, wide = headwise.attention(q, k, v, record=True)
    fits = tiny_records(1, 5)[0]
    with pytest.raises(RecordError, match=r"rollout needs as many queries as keys. Received: record 1 with Q=5, K=7"):
        rollout([fits, wide])
    with pytest.raises(RecordError, match=r"as record 0: B=1, N=5. Received: record 1 with B=1, N=6"):
        rollout([fits, *tiny_records(1, 6)])
    two = torch.randn(2, 2, 5, 4)
    with pytest.raises(RecordError, match=r"as record 0: B=1, N=5. Received: record 1 with B=2, N=5"):
        rollout([fits, headwise.attention(two, two, two, record=True)[1]])
    cross = AttentionRecord(make_call(q, q, q), site=Site("decoder.0.cross", 0, "cross", False, 2, 2))
    with pytest.raises(RecordError, match=r"record 1 \(decoder\.0\.cross\), cross-attention. Leave it out"):
        rollout([fits, cross])


def test_two_passes_are_refused_and_shared_layers_are_not() -> None:
    def at(name: str, call: int) -> AttentionRecord:
        q = torch.randn(1, 2, 5, 4)
        return AttentionRecord(make_call(q, q, q), site=Site(name, 0, "self", False, 2, 2, call))

    with pytest.raises(RecordError, match=r"one forward pass. Received: layer.0 twice"):
        rollout([at("layer.0", 0), at("layer.1", 0), at("layer.0", 1), at("layer.1", 1)])
    assert rollout([at("shared", 0), at("shared", 1), at("head", 0)]).shape == (1, 5, 5)


def test_bad_arguments() -> None:
    records = tiny_records(2, 5)
    with pytest.raises(ArgumentError, match=r"rollout needs at least one record"):
        rollout([])
    with pytest.raises(DtypeError, match=r"needs AttentionRecords. Received: records=Tensor"):
        rollout([torch.zeros(3)])  # type: ignore[list-item]
    with pytest.raises(DtypeError, match=r"needs AttentionRecords. Received: records=int"):
        rollout(3)  # type: ignore[arg-type]
    for rows in (5, [0, -6]):
        with pytest.raises(ArgumentError, match=r"rows must lie in 0 … 4"):
            rollout(records, rows=rows)
    for residual in (-0.1, 1.5, float("nan")):
        with pytest.raises(ArgumentError, match=r"residual must lie in 0 … 1. Received: residual="):
            rollout(records, residual=residual)
    with pytest.raises(ArgumentError, match=r"heads must be one of mean, max, min. Received: heads='median'"):
        rollout(records, heads="median")  # type: ignore[arg-type]
