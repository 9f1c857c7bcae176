"""What a terminal and a notebook show of results: a few lines, and small tables, never everything."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest
import torch

import headwise
from headwise import masks
from headwise.analyses import compare
from headwise.records import AttentionRecord, CallSite, Coverage, Seen, Site
from headwise.tables import FEW, Heading, Printed, Table
from headwise.text import as_tokens

LINES, LONGEST = 12, 130


def record(layer: int, heads: int = 4, **options: Any) -> AttentionRecord:
    q, k = torch.randn(1, heads, 6, 8), torch.randn(1, heads, 6, 8)
    kept = headwise.attention(q, k, k, record=True, **options)[1]
    kept.site = Site(f"model.<b>{layer}</b>.attn", layer, "self", False, heads, heads)
    return kept


@pytest.fixture(scope="module")
def seen() -> Seen:
    torch.manual_seed(0)
    found = Seen([record(layer) for layer in range(24)], Coverage((CallSite("a", "missed", 1, "why", "x.py:3"),) * 50))
    found.tokens = [["<b>", "&", "c", "d", "e", "f"]]
    return found


class Cells(HTMLParser):
    """The texts of the cells of the tables in some HTML, and the names of its elements."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.names: set[str] = set()
        self.inside = False
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.inside = True

    def handle_endtag(self, tag: str) -> None:
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data: str) -> None:
        if self.inside:
            self.rows[-1][-1] += data


def results(seen: Seen) -> dict[str, object]:
    plan = headwise.plan(*[torch.randn(1, 2, 9, 4)] * 3, mask=masks.causal())
    return {
        "seen": seen,
        "record": seen[0],
        "summary": seen.summary(),
        "a row of it": seen.summary().rows[0],
        "statistics": seen[0].statistics(),
        "of layers": seen.statistics("entropy", "lse"),
        "coverage": seen.coverage(),
        "comparison": compare(seen[0], seen[1]),
        "plan": plan,
        "mask": masks.causal() & masks.window(2, 0),
        "a large mask": masks.documents(torch.arange(4096) // 100),
        "tokens": as_tokens([[f"word{i}" for i in range(4096)]])[0],
        "diagnosis": headwise.diagnose(torch.nn.MultiheadAttention(8, 2, batch_first=True)),
    }


def test_none_is_a_wall_of_text(seen: Seen) -> None:
    for name, each in results(seen).items():
        lines = repr(each).splitlines()
        assert 1 <= len(lines) <= LINES, name
        assert max(map(len, lines)) <= (LONGEST if len(lines) > 1 else 2 * LONGEST), name
        assert "tensor(" not in repr(each), name


def test_a_summary_is_its_first_rows_and_a_table(seen: Seen) -> None:
    summary = seen.summary()
    assert repr(summary).startswith("Summary of 96 heads in 24 layers\n")
    assert repr(summary).endswith("… print(summary) shows more, summary.to_pandas() has all")
    few = Seen([record(0, heads=2)]).summary()
    assert "…" not in repr(few)
    assert repr(Seen().summary()) == "Summary(no heads)"
    cells = Cells(summary._repr_html_())
    assert [row[:2] for row in cells.rows[1:]] == [[str(layer), str(head)] for layer in range(24) for head in range(4)]
    assert cells.rows[1][-2] == f"{summary.rows[0].looks_label} → {summary.rows[0].looked_at_label}"
    assert "b" not in cells.names  # labels and paths are only text
    assert len(str(summary).splitlines()) > 48


def test_statistics_are_named_with_their_shapes_and_means(seen: Seen) -> None:
    found = seen[0].statistics("entropy", "top", top=3)
    mean = f"{float(found.entropy.double().mean()):.4g}"
    assert repr(found).splitlines()[1].split() == ["entropy", "[1,", "4,", "6]", "mean", mean]
    assert Cells(found._repr_html_()).rows[1:][0] == ["entropy", "[1, 4, 6]", mean]
    layers = seen.statistics("entropy")
    assert isinstance(layers, dict)
    assert Cells(layers._repr_html_()).rows[1] == [seen.layers[0], mean]
    assert repr(seen[0].statistics("lse").__class__()) == "Statistics(nothing)"


def test_a_table_of_coverage(seen: Seen) -> None:
    assert repr(seen.coverage()) == "Coverage(50 missed; print it for the table)"
    assert Cells(seen.coverage()._repr_html_()).rows[1] == ["missed", "1", "a", "why (x.py:3)"]
    assert Coverage()._repr_html_() == "<div>no place that computes attention was found</div>"


def test_a_mask_is_drawn() -> None:
    drawn = masks.causal()._repr_html_()
    assert "causal()" in drawn
    assert drawn.count("<rect") == 8 * 9 // 2 + 1  # and the frame
    assert "8 queries (down) × 8 keys (across), for example" in drawn
    large = masks.documents(torch.arange(4096) // 256)._repr_html_()
    assert large.count('fill-opacity="0.75"') == 16 * 4 * 4  # a document is 4 blocks of 64
    assert "a square stands for 64 × 64" in large
    assert 'fill-opacity="0.35"' in masks.documents(torch.arange(4096) // 100)._repr_html_()
    assert "<rect" not in masks.documents(torch.zeros(0, dtype=torch.long))._repr_html_()


def test_long_results_begin() -> None:
    class Long(Printed):
        def __init__(self, count: int) -> None:
            self.count = count

        def __str__(self) -> str:
            return "\n".join(f"line <{i}>" for i in range(self.count))

    assert repr(Long(FEW)) == str(Long(FEW))
    lines = repr(Long(FEW + 5)).splitlines()
    assert lines[: FEW - 1] == str(Long(FEW - 1)).splitlines()
    assert lines[-1] == "… and 6 more lines: print(...) writes all"
    assert "line &lt;16&gt;" in Long(17)._repr_html_()


def test_the_styles_of_a_table_are_few() -> None:
    table = Table([Heading("a", "left")], [[[[("x", "dim"), ("<y>", "cyan")]]], [["z"]]], title="t\nu", caption="c < d")
    html = table._repr_html_()
    assert '<span style="opacity: 0.5">x</span>&lt;y&gt;' in html
    assert "t<br>u" in html
    assert "c &lt; d" in html
    assert Cells(html).rows == [["a"], ["x<y>"], ["z"]]
