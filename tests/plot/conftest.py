"""Records to draw, fonts to draw with, and a watch over what a figure must leave as it was."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib import font_manager
from matplotlib.figure import Figure

import headwise
from headwise.masks import Mask
from headwise.plot import fonts
from headwise.records import AttentionRecord, Seen, Site

WORDS = ["The", "cat", "sat", "on", "the", "mat"]

MakeFont = Callable[[str, str], str]


def make_record(
    rows: int = 6, cols: int = 6, *, heads: int = 4, key_heads: int = 4, batch: int = 1, mask: Mask | None = None
) -> AttentionRecord:
    q = 2 * torch.randn(batch, heads, rows, 8)
    k = torch.randn(batch, key_heads, cols, 8)
    return headwise.attention(q, k, k, mask=mask, record=True)[1]


def make_seen(layers: int = 3, kind: Literal["self", "cross"] = "self", **options: Any) -> Seen:
    records = []
    for layer in range(layers):
        record = make_record(**options)
        heads, key_heads = record.shape[1], record.k.shape[1]
        record.site = Site(f"model.{layer}.attn", layer, kind, False, heads, key_heads)
        records.append(record)
    return Seen(records)


@pytest.fixture
def seen() -> Seen:
    """Three layers of four heads over WORDS."""
    found = make_seen()
    found.tokens = WORDS
    return found


def cells(figure: Figure) -> np.ma.MaskedArray[Any, Any]:
    """The numbers of a heat map."""
    return np.ma.asarray(figure.axes[0].images[0].get_array())


def weights_of(record: AttentionRecord, head: int = 0, example: int = 0) -> np.ndarray[Any, Any]:
    return record.weights(heads=head)[example, 0].numpy()


def names(figure: Figure, side: str) -> list[str]:
    axis = figure.axes[0].yaxis if side == "rows" else figure.axes[0].xaxis
    return [label.get_text() for label in axis.get_ticklabels()]


def written(figure: Figure) -> list[str]:
    """Every text in a figure that can be seen."""
    return [text.get_text() for text in figure.findobj(matplotlib.text.Text) if text.get_text()]


@pytest.fixture(autouse=True)
def _leaves_matplotlib_as_it_was() -> Iterator[None]:
    """No figure changes rcParams, imports pyplot or adds to its figures."""
    settings, pyplot = dict(matplotlib.rcParams), sys.modules.get("matplotlib.pyplot")
    open_figures = pyplot.get_fignums() if pyplot else []
    yield
    assert dict(matplotlib.rcParams) == settings
    after = sys.modules.get("matplotlib.pyplot")
    assert (after.get_fignums() if after else []) == open_figures
    assert after is pyplot


@pytest.fixture
def no_other_fonts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine on which nothing is installed beside what matplotlib brings along."""
    there = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", there)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    yield
    font_manager.fontManager._findfont_cached.cache_clear()  # it would remember the fonts of this test


@pytest.fixture
def make_font(tmp_path: Path) -> MakeFont:
    """`make_font("Name", "你好")` writes a TrueType font with these characters, and returns its path."""

    def make(name: str, characters: str) -> str:
        from fontTools.fontBuilder import FontBuilder
        from fontTools.pens.ttGlyphPen import TTGlyphPen

        pen = TTGlyphPen(None)
        for i, corner in enumerate([(100, 0), (100, 800), (900, 800), (900, 0)]):
            (pen.lineTo if i else pen.moveTo)(corner)
        pen.closePath()
        glyphs = {".notdef": pen.glyph(), **{f"g{ord(each):X}": pen.glyph() for each in characters}}
        font = FontBuilder(1000, isTTF=True)
        font.setupGlyphOrder(list(glyphs))
        font.setupCharacterMap({ord(each): f"g{ord(each):X}" for each in characters})
        font.setupGlyf(glyphs)
        font.setupHorizontalMetrics(dict.fromkeys(glyphs, (1000, 100)))
        font.setupHorizontalHeader(ascent=880, descent=-120)
        font.setupNameTable({"familyName": name, "styleName": "Regular", "psName": name.replace(" ", "")})
        font.setupOS2(usWeightClass=400)
        font.setupPost()
        path = str(tmp_path / f"{name.replace(' ', '')}.ttf")
        font.save(path)
        return path

    return make


@pytest.fixture(autouse=True)
def _forget_fonts() -> Iterator[None]:
    yield
    fonts._has_cff_outlines.cache_clear()
