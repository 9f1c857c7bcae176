"""What the server answers is what the record says, in whatever pieces it is worked out."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import get_args

import numpy as np
import pytest
import torch

import headwise
from headwise import masks
from headwise.records import AttentionRecord
from headwise.tiles import runs
from headwise.viewer import answers, heads
from headwise.viewer.answers import Answers, How, Question

from .conftest import record


@pytest.fixture(params=["at once", "in pieces"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in pieces":
        for module, values in (
            (heads, {"CELLS": 12, "WIDTH": 3}),
            (runs, {"WIDTH": 3}),
            (answers, {"CELLS": 12, "FEWEST_ROWS": 1, "ROWS": 4, "SPREAD_ROWS": 2}),
        ):
            for name, value in values.items():
                monkeypatch.setattr(module, name, value)
    return str(request.param)


def blocks(first: int, past: int, bins: int) -> list[range]:
    cuts = [first + i * (past - first) // bins for i in range(bins + 1)]
    return [range(*cut) for cut in itertools.pairwise(cuts)]


def expected(seen: AttentionRecord, b: int, asked: Question) -> np.ndarray:
    """The tile, cell by cell."""
    weights, forbidden = (each[b, asked.head] for each in all_cells(seen))
    out = np.full((asked.height, asked.width), np.nan)
    for y, rows in enumerate(blocks(*asked.rows, asked.height)):
        if asked.how == "sample":
            rows = range(middle := (rows.start + rows.stop) // 2, middle + 1)
        for x, cols in enumerate(blocks(*asked.cols, asked.width)):
            part = slice(rows.start, rows.stop), slice(cols.start, cols.stop)
            if not forbidden[part].all():
                out[y, x] = weights[part].mean() if asked.how == "mean" else weights[part].max()
    return out


@functools.lru_cache(maxsize=1)
def all_cells(seen: AttentionRecord) -> tuple[np.ndarray, np.ndarray]:
    """The weights, and which are forbidden."""
    return seen.weights().double().numpy(), (seen.scores() == -torch.inf).numpy()


def questions(seen: AttentionRecord) -> Iterator[Question]:
    """Every cell, one number for all, and what divides unevenly, of every head."""
    _, heads, q_len, k_len = seen.shape
    for number, how in itertools.product(range(heads), get_args(How)):
        yield Question(number, (0, q_len), (0, k_len), q_len, k_len, how)
        yield Question(number, (0, q_len), (0, k_len), 1, 1, how)
        yield Question(number, (0, q_len), (k_len - 1, k_len), q_len, 1, how)
        rows, cols = (q_len // 4, q_len), (0, max(1, k_len - 1))
        yield Question(number, rows, cols, max(1, (rows[1] - rows[0]) // 2), -(-2 * cols[1] // 3), how)


def test_a_tile_is_the_blocks_of_the_weights(case: AttentionRecord, pieces: str) -> None:
    largest = float(case.scores().masked_fill(case.scores() == -torch.inf, 0.0).nan_to_num().abs().max())
    near = 1e-6 * max(1.0, largest if case.q.dtype == torch.float32 else 0.0)  # float32 scores have no more digits
    for b in range(case.shape[0]):
        of = Answers(case, b)
        for asked in questions(case):
            found = of.tile(asked).now()
            assert found.dtype == np.float32
            np.testing.assert_allclose(found, expected(case, b, asked), rtol=0, atol=near, err_msg=str(asked))


def test_a_tile_of_known_rows_is_the_same(pieces: str) -> None:
    seen = record(length=30, mask=masks.causal() & masks.window(11, 0))
    asked = Question(1, (3, 30), (2, 29), 13, 9, "max")
    of = Answers(seen, 0)
    before = of.tile(asked)
    first, again = before.now(), of.tile(asked)
    assert (before.cells, again.cells) == (27 * 30, 27 * 27)
    np.testing.assert_allclose(again.now(), first, rtol=0, atol=1e-7)
    assert not of.head(1).knows(slice(0, 4))
    assert not Answers(seen, 0).head(1).knows(slice(3, 30))
    assert seen.lse is not None  # asked for, and so known
    assert Answers(seen, 0).head(1).knows(slice(0, 30))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes(dtype: torch.dtype, pieces: str) -> None:
    q = torch.randn(1, 2, 20, 8, dtype=dtype)
    seen = headwise.attention(q, q, q, mask=masks.causal(), record=True)[1]
    asked = Question(1, (0, 20), (0, 20), 7, 20, "max")
    np.testing.assert_allclose(Answers(seen, 0).tile(asked).now(), expected(seen, 0, asked), rtol=0, atol=1e-6)


def test_weights_too_small_to_draw_are_not_forbidden(pieces: str) -> None:
    q, k = torch.full((1, 1, 6, 1), 30.0), torch.zeros(1, 1, 6, 1)
    k[0, 0, 5] = 30.0  # exp(-900) is 0
    seen = headwise.attention(q, k, k, record=True, scale=1.0)[1]
    for how in get_args(How):
        of, asked = Answers(seen, 0), Question(0, (0, 6), (0, 6), 3, 2, how)
        for _ in "then the log-sum-exps are known", "":
            assert of.tile(asked).now().ravel() == pytest.approx(3 * [0.0, 1 / 3 if how == "mean" else 1.0])


def test_mix_adds_up_rows(case: AttentionRecord, pieces: str) -> None:
    _, heads, q_len, _ = case.shape
    shares = torch.randn(q_len).numpy()
    shares[::3] = 0.0
    for b in range(case.shape[0]):
        weights = case.weights()[b].double().numpy()
        of, sums = Answers(case, b), sum(shares @ weights[h] for h in range(heads))
        found = of.mix(shares).now()
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, sums / heads, rtol=0, atol=2e-5)
        np.testing.assert_allclose(of.mix(shares).now(), found, rtol=0, atol=1e-6)  # with the log-sum-exps at hand
        assert not of.mix(0 * shares).now().any()


def test_rows_without_a_share_are_not_looked_at() -> None:
    of, shares = Answers(record(length=9), 0), np.zeros(9, np.float32)
    shares[[2, 7]] = 1.0
    assert of.mix(shares).cells == 2 * 2 * 9
    of.mix(shares).now()
    assert [row for row in range(9) if of.head(0).knows(slice(row, row + 1))] == [2, 7]


def test_parts_may_be_worked_out_in_any_order(pieces: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "FEWEST_ROWS", 1)
    seen = record(length=30, mask=masks.causal())
    for how in ("max", "mean"):
        asked = Question(0, (0, 30), (0, 30), 4, 4, how)
        answer = Answers(seen, 0, threads=10).tile(asked)
        assert len(answer.parts) >= 8
        waiting = [*answer.parts]
        while waiting:  # a step of each, the last first
            waiting = [part for part in reversed(waiting) if next(part, True) is None]
        np.testing.assert_allclose(answer.result(), expected(seen, 0, asked), rtol=0, atol=1e-6)


LONG_MASKS = {
    "none": lambda: None,
    "causal": masks.causal,
    "window": lambda: masks.window(20, 0),
    "window and global tokens": lambda: masks.window(20, 0) | masks.global_tokens([0, 30]),
    "nothing in some rows": lambda: masks.documents([0] * 30 + [-1] * 20 + [1] * 50),
    "of each head": lambda: masks.from_tensor(torch.arange(2 * 10_000).view(2, 100, 100) % 3 < 2),
}


@pytest.mark.parametrize("options", [{}, {"sinks": True}, {"slopes": True}], ids=str)
@pytest.mark.parametrize("name", LONG_MASKS)
def test_a_few_rows_by_the_kernel_for_few_queries(
    name: str, options: dict[str, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their normalisers are those of all scores, whether or not that kernel can find them."""
    monkeypatch.setattr(heads, "LONG_ROW", 1)
    torch.manual_seed(1)
    q, k = torch.randn(1, 2, 100, 8), torch.randn(1, 2, 100, 8)
    given = {each: torch.tensor([0.5, -1.0]).abs() for each in options}
    _, seen = headwise.attention(q, k, k, mask=LONG_MASKS[name](), record=True, **given)
    weights = seen.weights().double()
    for rows in ([7], [0], [45], [3, 50, 99]):
        for number in range(2):
            of = Answers(seen, 0)
            for row in rows:
                tile = of.tile(Question(number, (row, row + 1), (row, row + 1), 1, 1, "max")).now()
                assert float(np.nan_to_num(tile[0, 0])) == pytest.approx(weights[0, number, row, row].item(), abs=1e-6)
            found = of.head(number).known.lse[rows]
            torch.testing.assert_close(found, seen.lse[0, number, rows], atol=1e-5, rtol=1e-5)


def test_a_sample_of_rows_that_see_little_takes_each_alone() -> None:
    """Together they would have all keys between the first and the last of them."""
    seen = record(length=400, mask=masks.window(3, 0))
    of, rows = Answers(seen, 0), np.arange(0, 400, 50)
    assert [part.stop - part.start for part in of.strips(of.head(0), rows, 400)] == [1] * 8
    wide = Answers(record(length=400, mask=masks.causal()), 0)
    assert [part.stop - part.start for part in wide.strips(wide.head(0), rows, 400)] == [16]
