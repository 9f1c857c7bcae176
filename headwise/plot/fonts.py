"""Finds fonts for every label, so that Chinese, emoji and Arabic are not drawn as boxes.

The first font is that of rcParams["font.family"]; for characters that it lacks, the installed fonts are searched.
Characters that no font has are drawn as their code points, such as U+4F60, and listed in one warning.
"""

from __future__ import annotations

import bisect
import contextlib
import unicodedata
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headwise.text.labels import shown

if TYPE_CHECKING:
    from matplotlib.font_manager import FontEntry, FontProperties

# Fonts to try first, in this order. {} is the variant (SC, TC, JP, KR); the variant of the text's own script comes
# first.
_KNOWN = (
    *("Noto Sans CJK {}", "Noto Sans {}", "Source Han Sans {}", "PingFang {}"),
    *("Hiragino Sans GB", "Hiragino Sans", "Microsoft YaHei", "SimHei", "Yu Gothic", "Malgun Gothic"),
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Arial Unicode MS"),
    *("Noto Emoji", "Symbola", "Segoe UI Emoji", "DejaVu Sans"),
)
_USELESS = ("last resort", "lastresort", "adobe blank", "adobe notdef")  # fonts with a box for every character

_OWN = "".join(map(chr, range(33, 127))) + "…×“”"  # characters of titles and notes

# What to install for a character of these names.
_REMEDIES = (
    (("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "FULLWIDTH", "IDEOGRAPHIC", "BOPOMOFO"),
     "Noto Sans CJK (Debian and Ubuntu: apt install fonts-noto-cjk)"),
    ((), "Noto Sans (Debian and Ubuntu: apt install fonts-noto-core)"),
)  # fmt: skip
_PICTOGRAMS = "Noto Emoji from fonts.google.com, or Symbola (Debian and Ubuntu: apt install fonts-symbola)"


class Letters:
    """Finds the fonts for a figure's texts. `of(text)` makes a text drawable. Warns once of characters without font."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._widths: dict[tuple[str, str], float] = {}  # inches at a size of 1 point
        characters = {character for text in (*texts, _OWN) for character in shown(text)}
        self.families, missing = _choose(characters)
        self._instead = {character: "" if _is_ignorable(character) else _code(character) for character in missing}
        told = sorted(character for character in missing if not _is_ignorable(character))
        if told:
            warnings.warn(_complaint(told), UserWarning, stacklevel=_outside())
        if not _shapes() and any(is_right_to_left(character) for character in characters):
            warnings.warn(
                "this matplotlib writes Arabic and Hebrew from left to right and does not join letters; "
                'for correct text: pip install "matplotlib>=3.11"',
                UserWarning,
                stacklevel=_outside(),
            )

    def of(self, text: str) -> str:
        """Return a text on one line without invisible characters; code points replace characters that no font has."""
        words: list[str] = []
        for character in shown(text):
            code = self._instead.get(character)
            if code is None:
                words.append(character)
            elif code:  # a space between two code points
                words.append(f" {code}" if words and words[-1].strip().startswith("U+") else code)
        return "".join(words)

    def has(self, character: str) -> bool:
        """Return whether one of the fonts has the character."""
        return any(_font(family).get_char_index(ord(character)) for family in self.families)

    def properties(self, size: float, weight: str = "normal") -> FontProperties:
        """Return the font properties for matplotlib; `size` in points."""
        from matplotlib.font_manager import FontProperties

        return FontProperties(family=self.families, size=size, weight=weight)

    @property
    def bold(self) -> str:
        """The font weight of titles: "bold" if all fonts have a bold variant, else "normal"."""
        from matplotlib.font_manager import fontManager

        there = {entry.name for entry in fontManager.ttflist if entry.weight in (700, "bold")}
        return "bold" if there.issuperset(self.families) else "normal"

    def width(self, text: str, size: float, weight: str = "normal") -> float:
        """Return the width of a line of text, in inches."""
        from matplotlib.textpath import text_to_path

        key = (text, weight)
        if text and key not in self._widths:
            font = self.properties(72, weight)
            self._widths[key] = float(text_to_path.get_text_width_height_descent(text, font, False)[0]) / 72**2
        return self._widths.get(key, 0.0) * size

    def cut(self, text: str, size: float, width: float, weight: str = "normal") -> str:
        """Return the line, cut with an ellipsis if it is wider than `width` inches."""
        if self.width(text, size, weight) <= width:
            return text
        lengths = range(len(text))  # bisection: a text may be long
        fits = bisect.bisect_right(lengths, width, key=lambda n: self.width(f"{text[:n]}…", size, weight))
        return f"{text[: max(0, fits - 1)].rstrip()}…"

    def wrap(self, text: str, size: float, width: float, weight: str = "normal") -> list[str]:
        """Split a sentence into lines of at most `width` inches."""
        lines: list[str] = []
        for word in text.split():
            # A word longer than a line, as Chinese without spaces is, ends a line after any character.
            parts = [word] if self.width(word, size, weight) <= width else list(word)
            room = width if len(parts) == 1 else 0.97 * width  # the advances of many wide letters are rounded to pixels
            for number, part in enumerate(parts):
                longer = f"{lines[-1]}{' ' * (number == 0)}{part}" if lines else part
                if lines and self.width(longer, size, weight) <= room:
                    lines[-1] = longer
                else:
                    lines.append(part)
        return lines

    @property
    def all_truetype(self) -> bool:
        """Whether a PDF can embed all these fonts as TrueType."""
        return not any(_has_cff_outlines(family) for family in self.families)


def is_right_to_left(text: str) -> bool:
    return any(unicodedata.bidirectional(character) in ("R", "AL") for character in text)


def is_upright(text: str) -> bool:
    """Return whether a label may be written top to bottom: one character, or a few of a vertically written script."""
    from headwise.text.labels import characters

    count = len(set(characters(text)))
    return count == 1 or (count <= 6 and all(unicodedata.east_asian_width(character) in "WF" for character in text))


# --- Choosing fonts ---------------------------------------------------------------------------------------------------


def _choose(characters: set[str]) -> tuple[list[str], set[str]]:
    """Choose the font families that are needed; return them, and the characters that none of them has."""
    families: list[str] = []
    missing = {character for character in characters if not character.isspace()}
    for candidates in (_own_families(), _installed_families(characters), _new_families()):
        for family in candidates:
            if families and not missing:
                return families, missing
            font = _font(family)
            found = {character for character in missing if font.get_char_index(ord(character))}
            if family not in families and (found or not families):
                families.append(family)
                missing -= found
    return families, missing


def _own_families() -> list[str]:
    """Return the font families of rcParams, by name."""
    from matplotlib import rcParams
    from matplotlib.font_manager import FontProperties, findfont, get_font

    families = []
    for family in rcParams["font.family"]:
        with contextlib.suppress(ValueError):
            path = findfont(FontProperties(family=family), fallback_to_default=False)
            families.append(get_font(path).family_name)
    return families or ["DejaVu Sans"]


def _installed_families(characters: set[str]) -> Iterator[str]:
    """Yield all font families that matplotlib knows, the most probable first."""
    from matplotlib.font_manager import fontManager

    upright = (entry.name for entry in fontManager.ttflist if entry.style == "normal" and _is_regular(entry))
    there = {name for name in upright if not name.lower().startswith((*_USELESS, "."))}
    names = {unicodedata.name(character, "").partition(" ")[0] for character in characters}
    own = "JP" if names & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in names else "SC"
    for known in _KNOWN:
        for name in [known.format(face) for face in dict.fromkeys((own, "SC", "TC", "JP", "KR"))]:
            if name in there:
                yield name
                there.remove(name)
    # Text fonts before emoji and pixel fonts.
    yield from sorted(there, key=lambda name: ("Serif" in name, "Mono" in name, "Unifont" in name, name))


def _new_families() -> Iterator[str]:
    """Yield the fonts that were installed after matplotlib made its list."""
    from matplotlib.font_manager import findSystemFonts, fontManager

    known = {str(entry.fname) for entry in fontManager.ttflist}
    for path in sorted(findSystemFonts()):
        if path in known or path in _unreadable:
            continue
        before = len(fontManager.ttflist)
        try:
            fontManager.addfont(path)
        except Exception:  # FreeType cannot read some fonts, such as colour bitmaps
            _unreadable.add(path)
            continue
        names = dict.fromkeys(entry.name for entry in fontManager.ttflist[before:] if _is_regular(entry))
        yield from (name for name in names if not name.lower().startswith(_USELESS))


_unreadable: set[str] = set()


def _is_regular(entry: FontEntry) -> bool:
    """Return whether a font is regular: not bold, light or narrow."""
    return entry.weight in (400, "normal", "regular") and entry.stretch == "normal"


def _font(family: str) -> Any:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    return get_font(findfont(FontProperties(family=family)))


@lru_cache
def _has_cff_outlines(family: str) -> bool:
    """Return whether a font has PostScript outlines, as Noto Sans CJK has. Some viewers do not show them as Type 42."""
    from fontTools.ttLib import TTFont

    font = _font(family)
    with TTFont(font.fname, fontNumber=getattr(font, "face_index", 0), lazy=True) as file:
        return "CFF " in file or "CFF2" in file


def _shapes() -> bool:
    """Return whether matplotlib joins and orders Arabic letters (since 3.11)."""
    from matplotlib import ft2font

    return hasattr(ft2font, "__libraqm_version__")


# --- Missing letters --------------------------------------------------------------------------------------------------


def _is_ignorable(character: str) -> bool:
    """Return whether a character is invisible (joiners, variation selectors), so that no font needs it."""
    return unicodedata.category(character) == "Cf" or "VARIATION SELECTOR" in unicodedata.name(character, "")


def _code(character: str) -> str:
    return f"U+{ord(character):04X}"


def _complaint(missing: list[str]) -> str:
    named = ", ".join(f"{character} ({_code(character)})" for character in missing[:5])
    more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
    remedies = "; ".join(dict.fromkeys(map(_remedy, missing)))
    return f"no installed font has {named}{more}, drawn as code points. Install a font with them: {remedies}"


def _remedy(character: str) -> str:
    if unicodedata.category(character) == "So":
        return _PICTOGRAMS
    name = unicodedata.name(character, "")
    return next(remedy for words, remedy in _REMEDIES if not words or name.startswith(words))


def _outside() -> int:
    """Return the `stacklevel` of the first caller outside this package, for warnings."""
    import sys

    depth, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(__name__.rpartition(".")[0]):
        depth, frame = depth + 1, frame.f_back
    return depth
