"""One head in pieces: together they are its scores, and what they leave out is forbidden."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.records import AttentionRecord
from headwise.records.statistics.lse import compute_normaliser
from headwise.tiles import runs
from headwise.viewer import heads
from headwise.viewer.heads import Head

ALLOWED = torch.rand(2, 4, 20, 20, generator=torch.Generator().manual_seed(3)) < 0.2

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.window(3, 2)},
    "far and near": {"mask": masks.window(1, 0) | ~masks.window(15, 20)},
    "padding": {"mask": masks.lengths(torch.tensor([20, 7]))},
    "cells of each example and head": {"mask": masks.from_tensor(ALLOWED)},
    "documents": {"mask": masks.documents(torch.arange(20) // 6) & masks.causal()},
    "bias": {"bias": torch.linspace(-1, 1, 2 * 4 * 20 * 20).view(2, 4, 20, 20), "softcap": 2.0},
    "slopes": {"mask": masks.causal(), "slopes": torch.tensor([0.5, 0.1, 0.02, -0.1])},
    "bias of the keys, sinks": {"bias": torch.linspace(-1, 1, 20), "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


@pytest.fixture(params=OPTIONS)
def seen(request: pytest.FixtureRequest) -> AttentionRecord:
    q, k = torch.randn(2, 4, 20, 8), torch.randn(2, 2, 20, 8)
    return headwise.attention(q, k, k, record=True, **OPTIONS[request.param])[1]


@pytest.fixture(params=[(2**18, 64), (32, 4)], ids=["one piece", "many pieces"])
def cells(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(heads, "CELLS", request.param[0])
    for module in (heads, runs):
        monkeypatch.setattr(module, "WIDTH", request.param[1])
    return int(request.param[0])


@pytest.mark.parametrize("rows", [[0], [19], [3, 4, 5, 6], [19, 2, 11, 2]], ids=str)
@pytest.mark.parametrize("keys", [(0, 20), (5, 18), (19, 20)], ids=str)
def test_pieces_are_the_scores(seen: AttentionRecord, cells: int, rows: list[int], keys: tuple[int, int]) -> None:
    for b, h in ((0, 0), (1, 1), (1, 3)):
        found = torch.full((len(rows), 20), -torch.inf)
        for first, s in Head(seen, b, h).pieces(torch.tensor(rows), *keys):
            assert keys[0] <= first < first + s.shape[1] <= keys[1]
            assert s.numel() <= max(cells, len(rows) * heads.WIDTH)
            found[:, first : first + s.shape[1]] = s
        expected = torch.full_like(found, -torch.inf)
        expected[:, slice(*keys)] = seen.scores(rows=rows, cols=slice(*keys), heads=h)[b, 0]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


def test_log_sum_exps(seen: AttentionRecord, cells: int) -> None:
    rows = torch.tensor([0, 7, 8, 19])
    found = compute_normaliser(seen.call, rows).lse
    for b, h in ((0, 0), (1, 3)):
        torch.testing.assert_close(found[b, h], seen.lse[b, h, rows])


def test_nothing_is_computed_where_all_is_forbidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads, "CELLS", 8)
    for module in (heads, runs):
        monkeypatch.setattr(module, "WIDTH", 4)
    q = torch.randn(1, 1, 20, 8)
    far = headwise.attention(q, q, q, mask=masks.window(1, 0) | ~masks.window(15, 20), record=True)[1]
    places = [(first, s.shape[1]) for first, s in Head(far, 0, 0).pieces(torch.tensor([18, 19]))]
    assert places == [(0, 4), (16, 4)]
