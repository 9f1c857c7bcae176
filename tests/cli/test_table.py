"""The table of heads of one text: whose heads it has, and how it is drawn."""

from __future__ import annotations

import dataclasses
import io

import torch
from rich.console import Console

from headwise.call import make_call
from headwise.cli.heads import print_table, summarise
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.summary import HeadSummary
from headwise.text import Tokens

LABELS = ["[CLS]", "the", "cat", "[bold]", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 2]
HEAD = HeadSummary(
    **{"layer": "0", "index": 0, "call": 0, "head": 0, "kind": "self"},
    numbers={"entropy": 1.234, "distance": 5.678, "previous": 0.1, "first_visible": 0.256, "keys_needed": 2.0},
    **{"weight": 0.934, "example": 0, "looks": 1, "looked_at": 2, "looks_label": "the", "looked_at_label": "cat"},
)
SUMMARIES = [dataclasses.replace(HEAD, index=layer, head=head) for layer in (0, 3) for head in (0, 1)]


def draw(summaries: list[HeadSummary], **console: object) -> str:
    file = io.StringIO()
    print_table(Console(file=file, **console), "notes.txt", LABELS, summaries)  # type: ignore[arg-type]
    return file.getvalue()


def rows(drawn: str) -> list[list[str]]:
    return [line.split() for line in drawn.splitlines() if "→" in line and line.split()[0].isdigit()]


def test_one_row_a_head_with_its_numbers_and_pair() -> None:
    drawn = draw(SUMMARIES)
    assert "notes.txt · 5 tokens" in drawn
    assert rows(drawn) == [
        [str(layer), str(head), "1.23", "5.7", "26%", "the", "→", "cat", "0.93"] for layer in (0, 3) for head in (0, 1)
    ]


def test_without_a_terminal_nothing_is_coloured_wrapped_or_cut() -> None:
    long = dataclasses.replace(HEAD, looks_label=LABELS[4], looked_at_label=LABELS[4])
    drawn = draw([long], width=80)
    assert "\x1b" not in drawn
    assert f"{LABELS[4]} → {LABELS[4]}" in drawn


def test_a_label_in_brackets_is_no_markup() -> None:
    named = dataclasses.replace(HEAD, looks_label=LABELS[0], looked_at_label=LABELS[3])
    assert "[CLS] → [bold]" in draw([named])


def test_a_narrow_terminal_keeps_every_number() -> None:
    drawn = draw(SUMMARIES, width=60, force_terminal=True, color_system=None)
    assert max(map(len, drawn.splitlines())) <= 60
    assert drawn.count("0.93") == len(SUMMARIES)


def test_layers_keep_their_numbers_and_tokens_their_names() -> None:
    queries = torch.zeros(1, 2, 4, 4)
    queries[0, 0, 2, 1] = queries[0, 1, 0, 3] = 9  # in head 0 token 2 looks at token 1, in head 1 token 0 at token 3
    keys = torch.eye(4).expand(1, 2, 4, 4)
    call = make_call(queries, keys, keys, scale=1.0)
    tokens = Tokens(ids=(0,) * 4, labels=tuple("abcd"), offsets=((0, 0),) * 4, special=(False,) * 4, text="")
    seen = Seen([AttentionRecord(call, site=Site(str(i), i, "self", False, 2, 2)) for i in range(6)])
    seen.tokens = [tokens]
    first, second = summarise(seen, [5])
    assert [(each.index, each.head) for each in (first, second)] == [(5, 0), (5, 1)]
    assert (first.looks_label, first.looked_at_label) == ("c", "b")
    assert (second.looks_label, second.looked_at_label) == ("a", "d")
