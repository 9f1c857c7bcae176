"""The same steps as Markdown and in the terminal."""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from headwise import masks, nn
from headwise.worksheet import Worksheet, make
from headwise.worksheet.colour import weight_colour

from .cases import CASES, Case, x


def small(**given: object) -> Worksheet:
    return make(nn.MultiHeadAttention(4, 2), x(3, 4), mask=masks.causal(), **{"tokens": ["a", "b", "c"], **given})


def tables(markdown: str) -> dict[str, list[list[str]]]:
    """The tables by the name of their matrix: rows of cells, with the labels."""
    found = {}
    for match in re.finditer(r"^\*\*(\S+)\*\* \[.*\n\n((?:\|.*\n)+)", markdown, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in match[2].splitlines()]
        found[match[1].replace("\\", "")] = [[cell.strip() for cell in row] for row in rows]
    return found


def test_markdown_has_every_matrix_with_its_numbers(case: Case, tmp_path: Path) -> None:
    sheet = case.make()
    sheet.write(tmp_path / "steps.md")
    text = (tmp_path / "steps.md").read_text("utf-8")
    found = tables(text)
    for name, matrix in sheet.matrices.items():
        if matrix.is_number:
            assert f"= {matrix.shown(0, 0)}\n" in text
            continue
        heads, _, *rows = found[name]
        assert [len(row) for row in (heads, *rows)] == [len(matrix.cols) + 1] * (len(matrix.rows) + 1)
        numbers = [[float(cell.replace("−∞", "-inf").replace("−", "-")) for cell in row[1:]] for row in rows]
        np.testing.assert_allclose(numbers, matrix.values, atol=0.51 * 10.0**-matrix.digits)


def test_markdown_as_it_stands(tmp_path: Path) -> None:
    small().write(tmp_path / "steps.md")
    text = (tmp_path / "steps.md").read_text("utf-8")
    assert text.startswith("# Multi-head attention, step by step\n")
    assert "\n## 5. Scores\n\nThe dot product of each query and each key is large" in text
    assert "\n`Sₕ = Qₕ Kₕᵀ`\n" in text
    assert (
        "**Scores\\_1** [Q × K] = [3 × 3] = `MMULT(Q_1, TRANSPOSE(K_1))`\n\n| Q ╲ K | a | b | c |\n|---|---:|" in text
    )
    assert "**Scale** = `1 / SQRT(2)` = 0.7071" in text
    assert "\n- h2e1 = `Z_2[i,1]`\n" in text
    assert "| M | width of the model | 4 |" in text


def test_any_token_is_shown(tmp_path: Path) -> None:
    sheet = small(tokens=["a|b", "<b>`x`", "*c*_\n$"], title="# no\nheading")
    sheet.write(tmp_path / "steps.md")
    text = (tmp_path / "steps.md").read_text("utf-8")
    assert text.startswith("# \\# no\N{REPLACEMENT CHARACTER}heading\n")
    labels = [row[0] for row in tables(text)["X"][2:]]
    assert labels == ["**a\\|b**", "**\\<b\\>\\`x\\`**", "**\\*c\\*\\_\N{REPLACEMENT CHARACTER}\\$**"]

    text = shown(small(tokens=["[red]x[/red]", "\x1b[31mc", ":smile:"]))
    assert "[red]x[/red]" in text
    assert ":smile:" in text
    assert "\x1b" not in text


def shown(sheet: Worksheet, **options: object) -> str:
    out = io.StringIO()
    sheet.show(Console(file=out, highlight=False, **{"width": 100, **options}))  # type: ignore[arg-type]
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "width"), [("everything", 80), ("mla", 50), ("sixteen tokens", 50), ("sixteen tokens", 200), ("bert", 80)]
)
def test_the_terminal_shows_every_matrix(name: str, width: int) -> None:
    sheet = CASES[name]().make()
    text = shown(sheet, width=width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in re.sub(r"1 …|\[Z₁ … Z_H\]", "", text)  # nothing is cut
    for matrix in sheet.matrices.values():
        assert f"{matrix.name} " in text
        assert matrix.shown(len(matrix.rows) - 1, len(matrix.cols) - 1) in text


def test_the_terminal_has_colours_for_weights_and_for_what_is_given() -> None:
    text = shown(small(), force_terminal=True, color_system="truecolor")
    red, green, blue = (int(weight_colour(1.0)[i : i + 2], 16) for i in (0, 2, 4))
    assert f"\x1b[30;48;2;{red};{green};{blue}m1.000" in text
    assert "\x1b[34m" in text


def test_colours_grow_with_the_weight() -> None:
    assert [weight_colour(weight) for weight in (-1, 0, 0.5, 1, 2)] == [
        "ffffff",
        "ffffff",
        "fdd89b",
        "f07f3c",
        "f07f3c",
    ]
