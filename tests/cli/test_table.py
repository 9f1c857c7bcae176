"""How the table of heads is drawn."""

from __future__ import annotations

import io

from rich.console import Console

from headwise.cli.heads import HeadSummary, print_table

LABELS = ["[CLS]", "the", "cat", "[bold]", "Donaudampfschifffahrtselektrizitätenhauptbetriebswerk" * 2]
SUMMARIES = [
    HeadSummary(layer, head, entropy=1.234, distance=5.678, on_first=0.256, looks=1, looked_at=2, strongest=0.934)
    for layer in (0, 3)
    for head in (0, 1)
]


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
    long = HeadSummary(0, 0, 1.0, 1.0, 0.5, looks=4, looked_at=4, strongest=1.0)
    drawn = draw([long], width=80)
    assert "\x1b" not in drawn
    assert f"{LABELS[4]} → {LABELS[4]}" in drawn


def test_a_label_in_brackets_is_no_markup() -> None:
    assert "[CLS] → [bold]" in draw([HeadSummary(0, 0, 1.0, 1.0, 0.5, looks=0, looked_at=3, strongest=1.0)])


def test_a_narrow_terminal_keeps_every_number() -> None:
    drawn = draw(SUMMARIES, width=60, force_terminal=True, color_system=None)
    assert max(map(len, drawn.splitlines())) <= 60
    assert drawn.count("0.93") == len(SUMMARIES)
