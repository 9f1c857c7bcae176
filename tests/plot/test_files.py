"""Figures in files: whole ones that other programs can read, or none."""

from __future__ import annotations

import errno
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from PIL import Image

from headwise import masks, plot
from headwise.errors import ArgumentError, FileError
from headwise.records import Seen

from .conftest import WORDS, make_record, make_seen

DRAW = {
    "heatmap": lambda seen, **options: plot.heatmap(seen, layer=0, **options),
    "heads": plot.heads,
    "lines": lambda seen, **options: plot.lines(seen, layer=0, **options),
    "surface3d": lambda seen, **options: plot.surface3d(seen, layer=0, **options),
    "text": lambda seen, **options: plot.text(seen, layer=0, row=2, **options),
}


@pytest.mark.parametrize("kind", DRAW)
def test_each_kind_writes_each_format(seen: Seen, tmp_path: Path, kind: str) -> None:
    for suffix in (".png", ".svg", ".pdf"):
        path = tmp_path / f"figure{suffix}"
        figure = DRAW[kind](seen, out=path)
        assert isinstance(figure, Figure)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["figure.pdf", "figure.png", "figure.svg"]
    with Image.open(tmp_path / "figure.png") as image:
        image.load()
        assert image.size == pytest.approx(300 * figure.get_size_inches(), abs=1)
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    texts = {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert kind == "lines" or "attention weight" in texts  # text stays text
    assert kind == "heads" or set(WORDS) <= texts
    data = (tmp_path / "figure.pdf").read_bytes()
    assert data.startswith(b"%PDF-")
    assert data.rstrip().endswith(b"%%EOF")
    assert b"/Subtype /CIDFontType2" in data  # TrueType, as journals want
    assert b"/Subtype /Type3" not in data


def test_the_same_figure_gives_the_same_bytes(seen: Seen, tmp_path: Path) -> None:
    for suffix in (".png", ".svg", ".pdf"):
        for name in ("first", "second"):
            plot.heatmap(seen, layer=0, out=tmp_path / f"{name}{suffix}")
            plot.mask(masks.window(1, 1), 6, out=tmp_path / f"{name} mask{suffix}")
        for kind in ("", " mask"):
            first, second = (tmp_path / f"{name}{kind}{suffix}" for name in ("first", "second"))
            assert first.read_bytes() == second.read_bytes()


INSIDE: dict[str, list[dict[str, Any]]] = {
    "heatmap": [{}, {"width": 3.3}, {"scale": "log"}, {"title": "word " * 60}, {"hide_sink": True}],
    "heads": [{}, {"width": 3.3}, {"scale": "log"}, {"title": "word " * 60}],
    "lines": [{}, {"width": 2.5}, {"title": "不带空格的标题" * 20}, {"head": [0, 3]}, {"row": 11}, {"col": 0}],
    "text": [{}, {"width": 2.5}, {"title": "word " * 60}, {"hide_sink": True}],
}


@pytest.mark.parametrize("kind", INSIDE)
def test_everything_lies_inside_the_figure(kind: str) -> None:
    seen = make_seen(2, rows=12, cols=12, mask=masks.causal())
    seen.tokens = [f"a quite long label {i}" for i in range(12)]
    for options in INSIDE[kind]:
        figure = DRAW[kind](seen, **options)
        box, size = figure.get_tightbbox(), figure.get_size_inches()
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= size[0]
        assert box.y1 <= size[1]


def test_a_figure_shows_itself_in_a_notebook_and_needs_matplotlib(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plot.heatmap(make_record(2, 2))._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for draw in (*DRAW.values(), lambda seen: plot.mask(masks.causal(), 4)):
        with pytest.raises(ArgumentError, match="needs the extra plot"):
            draw(seen)


def test_postscript_outlines_are_written_as_type_3(seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwise.plot.fonts._has_cff_outlines", lambda family: True)
    plot.heatmap(seen, layer=0, out=tmp_path / "figure.pdf")
    assert b"/Subtype /Type3" in (tmp_path / "figure.pdf").read_bytes()


def test_hostile_names_do_not_leave_their_place_in_an_svg(tmp_path: Path) -> None:
    odd = ["</text><script>alert(1)</script>", "a & b", '"', "\x00\x0b", "]]>", "\ud800"]
    plot.heatmap(make_record(), tokens=[odd], title="<b>&\x07", out=tmp_path / "figure.svg")
    root = ElementTree.parse(tmp_path / "figure.svg").getroot()
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    assert "a & b" in {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}


def test_the_ending_says_the_format_in_any_case(seen: Seen, tmp_path: Path) -> None:
    plot.heatmap(seen, layer=0, out=str(tmp_path / "FIGURE.PNG"))
    assert (tmp_path / "FIGURE.PNG").read_bytes().startswith(b"\x89PNG")
    for name in ("figure", "figure.jpg", "figure.png.gz"):
        with pytest.raises(
            ArgumentError, match=rf"expected a file name that ends in \.png, \.svg, \.pdf\. Received: out=.*{name}"
        ):
            plot.heads(seen, out=tmp_path / name)


def test_a_folder_is_not_written_over(seen: Seen, tmp_path: Path) -> None:
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(FileError, match=r"cannot write .*folder\.png: expected a file. Received: a folder"):
        plot.heatmap(seen, layer=0, out=tmp_path / "folder.png")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.png"]
    with pytest.raises(FileError, match=r"No such file or directory. Choose another file"):
        plot.heatmap(seen, layer=0, out=tmp_path / "nowhere" / "figure.png")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_full_disk_leaves_the_old_file(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str
) -> None:
    path = tmp_path / f"figure{suffix}"
    path.write_text("of yesterday", encoding="utf-8")
    draw = Figure.savefig

    def full(self: Figure, file: Any, **options: Any) -> None:
        draw(self, file, **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Figure, "savefig", full)
    with pytest.raises(FileError, match=r"No space left on device. Choose another file"):
        plot.heatmap(seen, layer=0, out=path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text(encoding="utf-8") == "of yesterday"


def test_whatever_goes_wrong_nothing_half_written_is_left(
    seen: Seen, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Figure, file: Any, **options: Any) -> None:
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupted)
    with pytest.raises(KeyboardInterrupt):
        plot.heatmap(seen, layer=0, out=tmp_path / "figure.png")
    assert list(tmp_path.iterdir()) == []
