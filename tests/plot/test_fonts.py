"""Every character has a font that has it, or a warning that says which to install."""

from __future__ import annotations

import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib import font_manager, ft2font

from headwise.plot import fonts, heatmap
from headwise.plot.fonts import Letters, is_upright

from .conftest import MakeFont, make_record

CHINESE = "你好"


def test_what_the_first_font_has_needs_no_other() -> None:
    letters = Letters(["naïve", "λόγος", "⏎⇥␣"])
    assert letters.families == ["DejaVu Sans"]
    assert letters.of("a\nb") == "a⏎b"
    assert letters.all_truetype


def test_a_font_that_has_the_characters_is_found(no_other_fonts: None, make_font: MakeFont) -> None:
    font_manager.fontManager.addfont(make_font("Some CJK", CHINESE))
    font_manager.fontManager.addfont(make_font("Another", "하"))
    letters = Letters(["the cat", CHINESE])
    assert letters.families == ["DejaVu Sans", "Some CJK"]
    assert letters.of(CHINESE) == CHINESE
    figure = heatmap(make_record(2, 2), tokens=list(CHINESE))
    label = figure.axes[0].get_yticklabels()[0]
    assert label.get_fontfamily() == ["DejaVu Sans", "Some CJK"]
    figure.draw_without_rendering()  # matplotlib would warn of a glyph that it misses


def test_known_fonts_come_first_and_those_of_the_texts_own_script(no_other_fonts: None, make_font: MakeFont) -> None:
    for name in ("A Font", "Noto Sans CJK JP", "Noto Sans CJK SC"):
        font_manager.fontManager.addfont(make_font(name, CHINESE + "かな"))
    assert Letters([CHINESE]).families[1] == "Noto Sans CJK SC"
    assert Letters([CHINESE, "かな"]).families[1] == "Noto Sans CJK JP"


def test_a_font_installed_since_matplotlib_made_its_list_is_found(
    no_other_fonts: None, make_font: MakeFont, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_font("Just Installed", CHINESE)
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [path])
    assert Letters([CHINESE]).families == ["DejaVu Sans", "Just Installed"]


def test_a_file_that_is_no_font_is_passed_over(
    no_other_fonts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"\x00\x01\x00\x00 and no more")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(broken)])
    with pytest.warns(UserWarning, match="no installed font has"):
        Letters([CHINESE])


def test_what_no_font_has_is_named_once_with_what_to_install(no_other_fonts: None) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        figure = heatmap(make_record(3, 3), tokens=["你", "好", "🐈"], title="你好")
        figure.draw_without_rendering()
    (warning,) = (each for each in caught if each.category is UserWarning)
    assert str(warning.message) == (
        "no installed font has 你 (U+4F60), 好 (U+597D), 🐈 (U+1F408), drawn as code points. "
        "Install a font with them: "
        "Noto Sans CJK (Debian and Ubuntu: apt install fonts-noto-cjk); "
        "Noto Emoji from fonts.google.com, or Symbola (Debian and Ubuntu: apt install fonts-symbola)"
    )
    assert warning.filename == __file__  # it points at who asked for the figure
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["U+4F60", "U+597D", "U+1F408"]


def test_many_missing_characters_are_counted(no_other_fonts: None) -> None:
    with pytest.warns(UserWarning, match=r"U\+4E16\), .* and 4 more, drawn as code points"):
        letters = Letters(["你好世界人工智能机"])
    assert letters.of("你好!") == "U+4F60 U+597D!"


@pytest.mark.parametrize(
    ("character", "remedy"),
    [("한", "fonts-noto-cjk"), ("か", "fonts-noto-cjk"), ("ก", "fonts-noto-core"), ("🦜", "Symbola")],
)
def test_the_remedy_is_that_of_the_script(no_other_fonts: None, character: str, remedy: str) -> None:
    with pytest.warns(UserWarning, match=remedy):
        Letters([character])


def test_signs_without_ink_are_not_missed(no_other_fonts: None, make_font: MakeFont) -> None:
    font_manager.fontManager.addfont(make_font("Animals", "🐈⬛"))
    letters = Letters(["🐈\u200d⬛\U000e0067"])
    assert letters.of("🐈\u200d⬛\U000e0067") == "🐈\u200d⬛"


def test_a_users_font_comes_first(no_other_fonts: None, make_font: MakeFont) -> None:
    font_manager.fontManager.addfont(make_font("Mine", "abc"))
    with matplotlib.rc_context({"font.family": ["Nowhere", "Mine"]}):
        assert Letters(["abc"]).families == ["Mine", "DejaVu Sans"]
    with matplotlib.rc_context({"font.family": ["Nowhere"]}):
        assert Letters(["abc"]).families == ["DejaVu Sans"]


def test_titles_are_bold_only_where_all_fonts_are(no_other_fonts: None, make_font: MakeFont) -> None:
    assert Letters(["abc"]).bold == "bold"
    font_manager.fontManager.addfont(make_font("Only Regular", CHINESE))
    assert Letters([CHINESE]).bold == "normal"


def test_outlines_that_a_pdf_cannot_carry_as_truetype_are_known(make_font: MakeFont, tmp_path: Path) -> None:
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.t2CharStringPen import T2CharStringPen

    pen = T2CharStringPen(1000, None)
    glyph = pen.getCharString()
    font = FontBuilder(1000, isTTF=False)
    font.setupGlyphOrder([".notdef", "g"])
    font.setupCharacterMap({0x4F60: "g"})
    font.setupCFF("PostScriptOutlines", {}, {".notdef": glyph, "g": glyph}, {})
    font.setupHorizontalMetrics({".notdef": (1000, 0), "g": (1000, 0)})
    font.setupHorizontalHeader()
    font.setupNameTable({"familyName": "PostScript Outlines", "styleName": "Regular"})
    font.setupOS2(usWeightClass=400)
    font.setupPost()
    font.save(tmp_path / "outlines.otf")
    before = list(font_manager.fontManager.ttflist)
    try:
        font_manager.fontManager.addfont(tmp_path / "outlines.otf")
        font_manager.fontManager.addfont(make_font("True Type", CHINESE))
        assert fonts._has_cff_outlines("PostScript Outlines")
        assert not fonts._has_cff_outlines("True Type")
    finally:
        font_manager.fontManager.ttflist = before


def test_an_older_matplotlib_says_that_it_cannot_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(ft2font, "__libraqm_version__", raising=False)
    with pytest.warns(UserWarning, match=r'pip install "matplotlib>=3.11"'):
        Letters(["مرحبا"])
    Letters(["hello"])


def test_long_lines_are_cut_and_wrapped() -> None:
    letters = Letters(["word …"])
    width = letters.width("word word", 10)
    assert letters.wrap("word word word", 10, width) == ["word word", "word"]
    assert letters.wrap("", 10, width) == []
    assert letters.cut("word", 10, width) == "word"
    cut = letters.cut("word" * 1000, 10, width)
    assert cut.endswith("…")
    assert letters.width(cut, 10) <= width < letters.width(f"{cut[:-1]}ww…", 10)
    assert letters.cut("word", 10, 0.0) == "…"


@pytest.mark.parametrize(
    ("label", "upright"),
    [("a", True), ("é", True), ("e\u0301", True), ("注意力", True), ("한국", True), ("ab", False), ("注a", False)],
)
def test_what_reads_from_top_to_bottom(label: str, upright: bool) -> None:
    assert is_upright(label) is upright
