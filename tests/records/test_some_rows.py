"""Statistics of a long record from some of its rows: those are exact, and the others say that nobody looked."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.errors import ArgumentError
from headwise.records import AttentionRecord
from headwise.records.statistics import STATISTICS
from headwise.records.tiles import spread
from headwise.tiles import Run, Tile

BY_ROW = ("entropy", "distance", "offset_mass", "first_visible", "learned_sink", "keys_needed")

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"mask": masks.causal()},
    "window": {"mask": masks.window(9, 0)},
    "padding": {"mask": masks.lengths(torch.tensor([300, 70]))},
    "slopes": {"slopes": torch.tensor([0.5, 0.1, 0.02, 0.0])},
    "sinks": {"mask": masks.causal(), "sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
}


@pytest.fixture(params=OPTIONS)
def seen(request: pytest.FixtureRequest) -> AttentionRecord:
    q, k = torch.randn(2, 4, 300, 8), torch.randn(2, 2, 300, 8)
    return headwise.attention(q, k, k, record=True, **OPTIONS[request.param])[1]


@pytest.mark.parametrize("rows", [1, 5, 40, 299])
def test_the_rows_that_are_looked_at_are_exact(seen: AttentionRecord, rows: int) -> None:
    some = seen.statistics(rows=rows, top=3)
    assert "lse" not in vars(seen)  # which all rows make
    every = seen.statistics(top=3)
    looked = ~some.lse.isnan()
    assert (looked.sum(2) <= rows + 7).all()
    assert (looked.sum(2) >= rows // 2).all()
    assert looked.any(2).all()
    torch.testing.assert_close(some.lse[looked], every.lse[looked])
    for name in BY_ROW:
        found, exact = getattr(some, name), getattr(every, name)
        torch.testing.assert_close(found[looked], exact[looked])
        assert not found[~looked].any()
    torch.testing.assert_close(some.top.weights[looked], every.top.weights[looked])
    assert not some.top.weights[~looked].any()
    weights = seen.weights().masked_fill(~looked[..., None], 0.0)
    torch.testing.assert_close(some.received, weights.sum(2), rtol=1e-5, atol=1e-5)


def test_as_many_rows_as_there_are_is_all(seen: AttentionRecord) -> None:
    some, every = seen.statistics("lse", "entropy", rows=300), seen.statistics("lse", "entropy")
    torch.testing.assert_close(some.entropy, every.entropy)
    attends = every.lse > -torch.inf
    torch.testing.assert_close(some.lse[attends], every.lse[attends])


def test_nothing_comes_that_was_not_asked_for(seen: AttentionRecord) -> None:
    found = seen.statistics("entropy", rows=8)
    assert [name for name in STATISTICS if getattr(found, name) is not None] == ["entropy"]


def test_the_rows_are_spread_evenly() -> None:
    tiles = [Tile(lo, hi, (Run(k, 9, False),)) for lo, hi, k in ((0, 100, 0), (160, 220, 0), (220, 400, 3))]
    found = spread(tiles, 32)
    assert [(tile.q_lo, tile.q_hi) for tile in found] == [(38, 46), (183, 191), (268, 276), (353, 361)]
    assert found[2].k_lo == 3
    assert spread(tiles, 340) == tiles


def test_rows_that_make_no_sense_are_named(seen: AttentionRecord) -> None:
    with pytest.raises(ArgumentError, match=r"statistics: rows must be at least 1\. Received: rows=0"):
        seen.statistics("entropy", rows=0)
