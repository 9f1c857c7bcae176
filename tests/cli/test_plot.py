"""`headwise plot` as a person uses it: the figure it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib import font_manager
from PIL import Image

import headwise
import headwise.plot
from headwise.records import Seen
from tests.viewer.conftest import placed, record

from .conftest import Run, contents, refused


def make_seen(calls: int = 1) -> Seen:
    """Two layers of two heads over six tokens."""
    places = [(layer, call) for call in range(calls) for layer in range(2)]
    seen = Seen([placed(record(length=6), f"encoder.{layer}.attn", layer, call=call) for layer, call in places])
    seen.tokens = list("abcdef")
    return seen


@pytest.fixture
def run_hw(tmp_path: Path) -> Path:
    make_seen().save(tmp_path / "run.hw")
    return tmp_path / "run.hw"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What the command asks of headwise.plot: (kind, options)."""
    calls: list[tuple[str, dict[str, Any]]] = []
    for kind in headwise.plot.__all__:

        def draw(seen: Seen, *, kind: str = kind, out: Path, **options: Any) -> None:
            calls.append((kind, options))
            out.write_bytes(b"drawn")

        monkeypatch.setattr(headwise.plot, kind, draw)
    return calls


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--layer", "1", "--head", "1", "--out", "figure.pdf"], b"%PDF-"),
        (["--kind", "heads", "--out", "figure.png"], b"\x89PNG"),
        (["--kind", "lines", "--layer", "0", "--head", "0,1", "--row", "c", "--out", "figure.svg"], b"<?xml"),
        (["--kind", "surface3d", "--layer", "0", "--out", "figure.png"], b"\x89PNG"),
        (["--kind", "text", "--layer", "0", "--row", "3", "--out", "figure.svg"], b"<?xml"),
    ],
)
def test_draws_a_file_of_records(run: Run, run_hw: Path, tmp_path: Path, arguments: list[str], start: bytes) -> None:
    result = run("plot", "run.hw", *arguments)
    assert (result.code, result.err) == (0, "")
    out = tmp_path / arguments[-1]
    assert out.read_bytes().startswith(start)
    assert result.out == f"Wrote the figure {out.name} ({out.stat().st_size / 1e3:.0f} kB).\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out.name, "run.hw"])


def test_every_option_reaches_the_figure(run: Run, run_hw: Path, asked: list[tuple[str, dict[str, Any]]]) -> None:
    given = "--layer encoder.1 --head mean --rows 0:4 --cols 1,3 --scale log --no-values --hide-sink --cmap cividis"
    assert run("plot", "run.hw", *given.split(), "--title", "A title", "--width", "3.3").code == 0
    assert run("plot", "run.hw", "--kind", "heads", "--layers", "1", "--example", "0", "--title", "").code == 0
    assert (
        run("plot", "run.hw", "--kind", "text", "--layer", "1", "--head", "1", "--col", "4", "--rows", "2:").code == 0
    )
    assert run("plot", "run.hw", "--layer", "0", "--values").code == 0
    assert run("plot", "run.hw", "--kind", "text", "--layer", "0", "--row", "c", "--cols", "b,5").code == 0
    assert asked == [
        (
            "heatmap",
            {
                "layer": "encoder.1",
                "head": "mean",
                "example": 0,
                "rows": slice(0, 4),
                "cols": [1, 3],
                "scale": "log",
                "values": False,
                "hide_sink": True,
                "cmap": "cividis",
                "title": "A title",
                "width": 3.3,
            },
        ),
        ("heads", {"layers": [1], "example": 0, "title": ""}),
        ("text", {"layer": 1, "head": 1, "example": 0, "col": 4, "rows": slice(2, None)}),
        ("heatmap", {"layer": 0, "example": 0, "values": True}),
        ("text", {"layer": 0, "example": 0, "row": 2, "cols": [1, 5]}),
    ]


def test_a_pass_and_a_width_are_chosen_and_the_only_layer_need_not_be(run: Run, tmp_path: Path, run_hw: Path) -> None:
    make_seen(calls=2).save(tmp_path / "two.hw")
    assert run("plot", "two.hw", "--layer", "0", "--call", "1", "--out", "figure.png").code == 0
    result = run("plot", "two.hw", "--layer", "0", "--call", "5")
    assert result.code == 2
    assert "there is no call 5: the calls are 0, 1" in result.err

    make_seen().only(1).save(tmp_path / "one.hw")
    assert run("plot", "one.hw", "--out", "figure.png").code == 0

    assert run("plot", "run.hw", "--layer", "0", "--width", "3.3", "--out", "figure.png").code == 0
    with Image.open(tmp_path / "figure.png") as image:
        assert image.width == pytest.approx(990, abs=2)


def test_missing_fonts_are_one_line(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = [entry for entry in font_manager.fontManager.ttflist if entry.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", there)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    seen = make_seen()
    seen.tokens = list("人工智能很好")
    seen.save(tmp_path / "chinese.hw")
    result = run("plot", "chinese.hw", "--layer", "0", "--out", "figure.png")
    assert result.code == 0
    (line,) = result.err.splitlines()
    assert line.startswith("headwise: no installed font has 人 (U+4EBA), ")
    assert "apt install fonts-noto-cjk" in line


BAD: dict[str, tuple[list[str], str]] = {
    # what is given, and what the one line must say
    "a file that is missing": ("nowhere.hw --layer 0", "there is no file nowhere.hw"),
    "no file": ("", "Missing argument 'RECORDS'"),
    "no layer": ("run.hw", "--layer: the file has 2 layers. Add --layer with a number, 0 … 1, or a name"),
    "a layer that is not there": ("run.hw --layer 2", "layers are numbered 0 … 1. Received: 2"),
    "layers that are not there": ("run.hw --kind heads --layers 0-2", "expected layers from 0 to 1"),
    "a head that is no number": ("run.hw --layer 0 --head all", '--head: expected a number, or "mean"'),
    "rows that are none": ("run.hw --layer 0 --rows a,,b", "--rows: expected a range such as 0:20"),
    "a token that is not there": ("run.hw --layer 0 --rows a,z", "--rows: 'z' is not among the tokens"),
    "a token that is there twice": ("twice.hw --kind text --layer 0 --row it", "--row: 'it' occurs at 1 and 4"),
    "a text without a row": ("run.hw --kind text --layer 0", "expected exactly one of --row"),
    "a row of a heat map": (
        "run.hw --layer 0 --row 1",
        "--row: only --kind lines or text has it. Received: --kind=heatmap",
    ),
    "a layer of heads": ("run.hw --kind heads --layer 0", "only --kind heatmap, lines, surface3d or text has it"),
    "values of a surface": ("run.hw --kind surface3d --layer 0 --values", "--values: only --kind"),
    "a format": ("run.hw --layer 0 --out a.gif", "--out a.gif: expected a file name that ends in .png, .svg, .pdf"),
    "a folder that is missing": ("run.hw --layer 0 --out no/a.pdf", "the folder no does not exist. Create it first"),
    "the records themselves": ("same.pdf --layer 0 --out same.pdf", "this is the input file RECORDS"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_one_line_and_leaves_nothing_behind(run: Run, run_hw: Path, tmp_path: Path, case: str) -> None:
    (tmp_path / "same.pdf").write_bytes(run_hw.read_bytes())
    twice = make_seen()
    twice.tokens = ["the", "it", "b", "c", "it", "d"]
    twice.save(tmp_path / "twice.hw")
    before = contents(tmp_path)
    arguments, expected = BAD[case]
    refused(run("plot", *arguments.split()), expected)
    assert contents(tmp_path) == before


def test_without_matplotlib_the_line_says_what_to_install(
    run: Run, run_hw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = run("plot", "run.hw", "--layer", "0")
    assert result.code == 2
    assert "needs the extra plot" in result.err
