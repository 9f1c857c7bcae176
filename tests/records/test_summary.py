"""The table of heads: its numbers by hand and against dense weights, and how it is drawn, whatever the width."""

from __future__ import annotations

import dataclasses
import io
import math
import sys
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import Tensor

import headwise
from headwise import masks
from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.summary import HeadSummary, RunningSummary, Summary, head_table


def attended(q_HQD: Tensor, k_HKD: Tensor, mask: Mask | None = None, site: Site | None = None) -> AttentionRecord:
    kept = headwise.attention(q_HQD[None], k_HKD[None], k_HKD[None], mask=mask, scale=1.0, record=True)[1]
    kept.site = site
    return kept


def rows_of(kept: AttentionRecord) -> list[HeadSummary]:
    return list(Seen([kept]).summary())


def test_a_head_that_looks_everywhere_alike() -> None:
    (head,) = rows_of(attended(torch.zeros(1, 3, 4), torch.randn(1, 3, 4)))
    assert (head.layer, head.index, head.call, head.head, head.kind) == ("attention", 0, 0, 0, "self")
    assert head.entropy == pytest.approx(math.log(3), abs=1e-6)
    assert head.distance == pytest.approx((1 + 2 / 3 + 1) / 3, abs=1e-6)  # of 0 1 2, 1 0 1 and 2 1 0
    assert head.previous == pytest.approx(1 / 3, abs=1e-6)  # the first has no previous token, and does not count
    assert head.first_visible == pytest.approx(1 / 3, abs=1e-6)
    assert head.keys_needed == 3
    assert head.weight == pytest.approx(1 / 3, abs=1e-6)


def test_the_strongest_pair_is_found_in_each_head_and_example() -> None:
    queries = torch.zeros(2, 2, 4, 4)
    queries[1, 0, 2, 1] = 9  # in head 0 token 2 of the second example looks at token 1,
    queries[0, 1, 0, 3] = 9  # in head 1 token 0 of the first at token 3: all others look everywhere
    keys = torch.eye(4).expand(2, 2, 4, 4)
    seen = Seen([headwise.attention(queries, keys, keys, scale=1.0, record=True)[1]])
    first, second = seen.summary()
    assert (first.example, first.looks, first.looked_at) == (1, 2, 1)
    assert (second.example, second.looks, second.looked_at) == (0, 0, 3)
    assert first.weight == second.weight == pytest.approx(math.exp(9) / (math.exp(9) + 3), abs=1e-5)
    assert (first.looks_label, first.looked_at_label) == ("2", "1")
    seen.tokens = [list("abcd"), list("wxyz")]
    first, second = seen.summary()
    assert (first.looks_label, first.looked_at_label) == ("y", "x")
    assert (second.looks_label, second.looked_at_label) == ("a", "d")


def test_queries_that_see_nothing_are_left_out_of_the_means() -> None:
    mask = masks.documents([0, 0, -1, -1])  # two of four queries are padding
    (head,) = rows_of(attended(torch.zeros(1, 4, 4), torch.randn(1, 4, 4), mask))
    assert head.entropy == pytest.approx(math.log(2), abs=1e-6)
    assert head.keys_needed == 2
    assert head.first_visible == pytest.approx(1 / 2, abs=1e-6)


def looking_back(mask: Mask | None = None, bias: torch.Tensor | None = None) -> float:
    """The previous-token score of a head of six tokens that looks at the token before, as far as it may."""
    keys = torch.eye(6)[None, None]
    queries = 100 * keys.roll(1, -2)  # query i asks for key i - 1
    seen = headwise.attention(queries, keys, keys, mask=mask, bias=bias, scale=1.0, record=True)[1]
    (head,) = Seen([seen]).summary()
    return head.previous


def test_a_query_without_a_previous_token_does_not_count() -> None:
    barred = torch.zeros(6, 6)
    barred[[2, 5], [1, 4]] = -math.inf
    for given in (
        {},
        {"mask": masks.causal()},
        {"mask": masks.documents([0, 0, 1, 1, 1, 2])},  # each document has a first token
        {"mask": masks.causal() & masks.padding(torch.tensor([[False, False, True, True, True, True]]))},
        {"bias": barred},
        {"mask": masks.from_tensor(barred == 0)},
    ):
        assert looking_back(**given) == pytest.approx(1, abs=1e-6), given  # type: ignore[arg-type]
    assert math.isnan(looking_back(masks.from_tensor(torch.eye(6).bool())))


def test_what_has_no_numbers_says_so() -> None:
    nothing = rows_of(attended(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4), masks.lengths([0])))[0]
    nobody = rows_of(attended(torch.zeros(1, 0, 4), torch.zeros(1, 3, 4)))[0]
    for head in (nothing, nobody):
        assert math.isnan(head.entropy)
        assert (head.looks_label, head.looked_at_label) == ("", "")
        assert "–" in str(head_table([head]))
    cross = attended(torch.zeros(1, 3, 4), torch.zeros(1, 5, 4), site=Site("x", 0, "cross", False, 1, 1))
    (head,) = rows_of(cross)
    assert (math.isnan(head.distance), math.isnan(head.previous)) == (True, True)  # tokens of two texts
    assert head.entropy == pytest.approx(math.log(5), abs=1e-6)


def test_agrees_with_dense_weights() -> None:
    q, k = torch.randn(2, 3, 20, 8).double(), torch.randn(2, 3, 20, 8).double()
    mask = masks.causal() & masks.lengths([20, 15])
    seen = Seen([headwise.attention(q, k, k, mask=mask, record=True)[1]])
    s = (q @ k.mT / 8**0.5).masked_fill(~mask.to_bool(20), -math.inf)
    a_BHQK = s.softmax(-1)
    away_QK = (torch.arange(20)[:, None] - torch.arange(20)).abs()
    for head, row in enumerate(seen.summary()):
        a_BQK = a_BHQK[:, head]
        assert row.entropy == pytest.approx(-torch.special.xlogy(a_BQK, a_BQK).sum(-1).mean().item())
        assert row.distance == pytest.approx((a_BQK * away_QK).sum(-1).mean().item())
        assert row.previous == pytest.approx(a_BQK.diagonal(-1, 1, 2).sum().item() / (19 + 15))  # see lengths
        assert row.first_visible == pytest.approx(a_BQK[..., 0].mean().item())
        held = a_BQK.sort(-1, descending=True).values.cumsum(-1)
        assert row.keys_needed == pytest.approx(((held < 0.9 - 1e-9).sum(-1) + 1).double().mean().item())
        # The first query sees itself alone: its weight says nothing.
        assert a_BQK[row.example, row.looks, row.looked_at].item() == pytest.approx(a_BQK[:, 1:].max().item())


# --- Drawing ----------------------------------------------------------------------------------------------------------

ROW = HeadSummary(
    *("encoder.layer.0.attn", 0, 0, 0, "self"),
    {"entropy": 1.234, "distance": 56.78, "previous": 0.123, "first_visible": 0.256, "keys_needed": 12.34},
    *(0.934, 0, 1, 2, "the", "Donaudampfschiff"),
)  # fmt: skip


def rows(layers: int, heads: int = 2, **changes: Any) -> list[HeadSummary]:
    return [
        dataclasses.replace(ROW, layer=f"encoder.layer.{i}.attn", index=i, head=head, **changes)
        for i in range(layers)
        for head in range(heads)
    ]


def lines(drawn: str) -> list[list[str]]:
    return [line.split() for line in drawn.splitlines() if "→" in line and line.split()[0].isdigit()]


def test_one_row_a_head() -> None:
    drawn = str(Summary(tuple(rows(2))))
    assert lines(drawn) == [
        [str(layer), str(head), "1.23", "56.8", "12%", "26%", "12.3", "the", "→", "Donaudampfschiff", "0.93"]
        for layer in range(2)
        for head in range(2)
    ]
    assert drawn.splitlines()[0] == "layer 0, 1: encoder.layer.*.attn"
    assert "\x1b" not in drawn


def test_calls_and_kinds_are_told_only_where_they_differ() -> None:
    assert not {"call", "kind"} & set(str(Summary(tuple(rows(2)))).split())
    several = [*rows(1), *rows(1, call=1, kind="cross")]
    assert [line[:4] for line in lines(str(Summary(tuple(several))))] == [
        ["0", "0", "0", "self"],
        ["0", "0", "1", "self"],
        ["0", "1", "0", "cross"],
        ["0", "1", "1", "cross"],
    ]


def test_a_wide_model_stays_readable() -> None:
    summary = Summary(tuple(rows(36, 32)))
    drawn = str(summary)
    assert len(lines(drawn)) == 48
    assert "… and 1,104 more rows; to_pandas() has all" in drawn
    assert drawn.splitlines()[0] == "layer 0 … 35: encoder.layer.*.attn"
    assert len(summary) == len(list(summary)) == len(summary.to_pandas()) == 36 * 32


def test_a_narrow_terminal_keeps_every_number() -> None:
    file = io.StringIO()
    Console(file=file, width=80, force_terminal=True, color_system=None).print(Summary(tuple(rows(2))))
    assert max(map(len, file.getvalue().splitlines())) <= 80
    for number in ("1.23", "56.8", "12%", "26%", "12.3", "0.93"):
        assert file.getvalue().count(f" {number}") == 4


def test_a_label_in_brackets_is_no_markup() -> None:
    assert "[CLS] → [bold]" in str(Summary(tuple(rows(1, looks_label="[CLS]", looked_at_label="[bold]"))))


def test_a_frame_has_the_fields_of_a_row() -> None:
    frame = Summary(tuple(rows(2))).to_pandas()
    assert list(frame.columns) == HeadSummary.fields()
    assert frame["entropy"].tolist() == [1.234] * 4
    assert frame.groupby("layer")["head"].count().to_dict() == {"encoder.layer.0.attn": 2, "encoder.layer.1.attn": 2}
    assert list(Summary(()).to_pandas().columns) == list(frame.columns)
    seen = Seen([attended(torch.zeros(1, 3, 4), torch.zeros(1, 3, 4))])
    assert len(seen.to_pandas()) == 1


def test_without_pandas_the_way_to_get_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ArgumentError, match="needs the extra pandas"):
        Summary(()).to_pandas()


# Many runs, one after the other.


def test_a_running_summary_is_the_mean_over_the_queries_of_all_runs() -> None:
    """Three queries of entropy log 3, and four of 0: the strongest pair is of the second run."""
    running, keys = RunningSummary(), torch.eye(4)
    alike = attended(torch.zeros(1, 3, 4), torch.randn(1, 3, 4))
    one_back = attended(60 * keys[torch.tensor([0, 0, 1, 2])][None], keys[None])
    for kept in (alike, one_back):
        running.add(Seen([kept]))
    (head,) = running.summary()
    assert head.entropy == pytest.approx(3 * math.log(3) / 7, abs=1e-6)
    assert head.keys_needed == pytest.approx((3 * 3 + 4 * 1) / 7)
    assert (head.weight, head.example, running.runs) == (pytest.approx(1, abs=1e-6), 1, 2)
    (first,) = rows_of(one_back)
    assert (head.looks, head.looked_at) == (first.looks, first.looked_at)


def test_a_running_summary_of_one_run_is_its_summary() -> None:
    seen = Seen(
        [attended(torch.randn(3, 5, 4), torch.randn(3, 5, 4), masks.causal(), Site("a", 0, "self", True, 3, 3))]
    )
    running = RunningSummary()
    running.add(seen)
    assert str(running.summary()) == str(seen.summary())
    assert not list(RunningSummary().summary())


def test_what_has_no_meaning_stays_so() -> None:
    """Distances between two sequences."""
    running = RunningSummary()
    for _ in range(2):
        running.add(
            Seen([attended(torch.randn(1, 2, 4), torch.randn(1, 5, 4), site=Site("a", 0, "cross", False, 1, 1))])
        )
    (head,) = running.summary()
    assert math.isnan(head.distance)
    assert not math.isnan(head.entropy)
