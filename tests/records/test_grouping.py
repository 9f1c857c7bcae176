"""Attention between groups: by hand, then against sums over the dense float64 matrix."""

from __future__ import annotations

import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

import headwise
from headwise import masks
from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.records import AttentionRecord, grouping
from headwise.records.grouping import grouped
from headwise.text import Groups

How = Literal["sum", "mean", "max"]


def division(*spans: tuple[int, ...]) -> Groups:
    return Groups(tuple(map(str, range(len(spans)))), spans)


PAIRS = division(*((i, i + 1) for i in range(0, 30, 2)))
# Sizes from 1 to 17, one of them in two parts.
UNEVEN = division((0,), (1, 2, 3), (4, 12), tuple(range(5, 12)), tuple(range(13, 30)))
ALL = division(tuple(range(30)))
ROWS = division((0, 3), (1, 2), (4, 5, 6))  # of 7 queries


def dense(weights: Tensor, rows: Groups | None, cols: Groups | None, how: How) -> Tensor:
    """The definition, for one example [H, Q, K], a cell at a time."""
    row_spans = rows.spans if rows else [(i,) for i in range(weights.shape[1])]
    col_spans = cols.spans if cols else [(i,) for i in range(weights.shape[2])]
    out = weights.new_zeros(len(weights), len(row_spans), len(col_spans))
    for i, row in enumerate(row_spans):
        for j, col in enumerate(col_spans):
            cells = weights[:, list(row)][:, :, list(col)]
            out[:, i, j] = {"sum": cells.sum(2).mean(1), "mean": cells.mean((1, 2)), "max": cells.amax((1, 2))}[how]
    return out


def recorded(q_len: int = 30, dtype: torch.dtype = torch.float64, **options: object) -> AttentionRecord:
    q, k = torch.randn(2, 4, q_len, 8, dtype=dtype), torch.randn(2, 2, 30, 8, dtype=dtype)
    return headwise.attention(q, k, k, record=True, **options)[1]


@pytest.fixture(params=[2**25, 2**13, 1], ids=["one block", "a few rows", "row by row"], autouse=True)
def block_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grouping, "BLOCK_BYTES", request.param)


def test_by_hand() -> None:
    # Three keys with scores 0, log 2 and log 3 for the first query, and no difference for the second.
    q = torch.tensor([[1.0], [0.0]])[None, None]
    k = torch.tensor([[0.0], [math.log(2)], [math.log(3)]])[None, None]
    _, record = headwise.attention(q, k, k, record=True)
    one, two = division((0, 1)), division((0,), (1, 2))
    close = torch.testing.assert_close
    close(grouped(record, None, two)[0, 0], torch.tensor([[1 / 6, 5 / 6], [1 / 3, 2 / 3]]))
    close(grouped(record, one, None)[0, 0], torch.tensor([[1 / 4, 1 / 3, 5 / 12]]))
    close(grouped(record, one, two)[0, 0], torch.tensor([[1 / 4, 3 / 4]]))
    close(grouped(record, one, two, "mean")[0, 0], torch.tensor([[1 / 4, 3 / 8]]))
    close(grouped(record, one, two, "max")[0, 0], torch.tensor([[1 / 3, 1 / 2]]))


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
@pytest.mark.parametrize("cols", [None, PAIRS, UNEVEN, ALL], ids=["tokens", "pairs", "uneven", "all"])
@pytest.mark.parametrize(("q_len", "rows"), [(30, None), (30, UNEVEN), (7, ROWS)], ids=["tokens", "uneven", "decode"])
def test_equals_the_dense_sums(q_len: int, rows: Groups | None, cols: Groups | None, how: How) -> None:
    record = recorded(q_len, mask=masks.causal(), sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    found = grouped(record, rows, cols, how)
    assert found.dtype == torch.float64
    expected = torch.stack([dense(weights, rows, cols, how) for weights in record.weights()])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("how", ["sum", "mean", "max"])
def test_each_example_has_its_own(how: How) -> None:
    record = recorded()
    rows, cols = [UNEVEN, ALL], [PAIRS, UNEVEN]
    found = grouped(record, rows, cols, how)
    assert found.shape == (2, 4, 5, 15)
    for weights, each, row, col in zip(record.weights(), found, rows, cols, strict=True):
        torch.testing.assert_close(each[:, : len(row), : len(col)], dense(weights, row, col, how), rtol=0, atol=1e-12)
        assert not each[:, len(row) :].any()
        assert not each[:, :, len(col) :].any()
    torch.testing.assert_close(grouped(record, [UNEVEN] * 2, (PAIRS, PAIRS), how), grouped(record, UNEVEN, PAIRS, how))


def test_never_has_all_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    record, weights, sizes = recorded(), AttentionRecord.weights, []

    def spy(self: AttentionRecord, rows: slice) -> Tensor:
        tile = weights(self, rows=rows)
        sizes.append(tile.nbytes)
        return tile

    monkeypatch.setattr(AttentionRecord, "weights", spy)
    monkeypatch.setattr(grouping, "BLOCK_BYTES", 2**13)
    grouped(record, UNEVEN, PAIRS)
    assert max(sizes) <= 2**13
    assert sum(sizes) == 2 * 4 * 30 * 30 * 8


@pytest.mark.parametrize(
    ("q_len", "given", "error", "message"),
    [
        (30, (None, PAIRS, "median"), ArgumentError, r'how must be "sum", "mean" or "max"\. Received: how=.median.'),
        (30, (UNEVEN, ROWS), ShapeError, r"cols .* the record's 30 tokens\. Received: cols=groups of 7 .* example 0"),
        (7, ([ROWS, PAIRS], None), ShapeError, r"rows .* 7 tokens\. Received: rows=groups of 30 .* example 1"),
        (30, ([PAIRS] * 3, None), ShapeError, r"rows must be Groups, or one for each of 2 .* Received: rows=3 Groups"),
        (
            30,
            (None, (0, 1)),
            DtypeError,
            r"cols must be Groups \(tokens\.words\(\)\) or a list of them\. Received: cols=",
        ),
        (30, (None, "words"), DtypeError, "cols must be Groups"),
    ],
    ids=["how", "other columns", "other rows", "other number", "numbers", "text"],
)
def test_bad_input(q_len: int, given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"\Agrouped: {message}"):
        grouped(recorded(q_len), *given)
