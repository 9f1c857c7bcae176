"""Labels of tokens: the whole characters that a token covers, with visible signs for invisible characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence

from headwise.text.spelling import WORD_END, Spelling

# Characters that are words by themselves, so a mark that they continue a word would be meaningless.
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
HIRAGANA = "\u3041-\u309f"
BY_ITSELF = re.compile(f"[{HAN}{HIRAGANA}]")


def label(
    text: str, names: Sequence[str], offsets: Sequence[tuple[int, int]], special: Sequence[bool], spelling: Spelling
) -> list[str]:
    """Make the label of each token of `text`; the docstring of `Tokens` describes labels.

    Args:
        text: the text that the offsets point into.
        names: for each token its name in the vocabulary, which tells the white space around it and its marks.
        offsets: for each token (start, end), as `own_offsets` returns them: the token covers text[start:end].
        special: for each token whether it is a special token, whose label is its name.
        spelling: how the vocabulary spells its tokens.
    """
    character_at = characters(text)
    # The whole characters of each token, even if it holds only some bytes of one.
    touched = [
        [] if sign else list(dict.fromkeys(character_at[start : min(end, start + _LONGEST)]))
        for (start, end), sign in zip(offsets, special, strict=True)
    ]
    sharing = Counter(span for spans in touched for span in spans)
    seen: Counter[tuple[int, int]] = Counter()
    labels = []
    for name, (start, end), sign, spans in zip(names, offsets, special, touched, strict=True):
        seen.update(spans)
        spelt = "" if sign else spelling.find_bytes(name).decode("utf-8", "replace")
        if sign or not spelt.strip(_WHITE):
            labels.append(name.strip(" ") if sign else show_spaces(_cut(spelt)))  # some names include the space before
            continue
        written = [_visible(text[slice(*span)]) + _part(seen[span], sharing[span]) for span in spans]
        inked = [i for i, span in enumerate(spans) if text[slice(*span)].strip(_WHITE)]
        if inked:
            first, last = inked[0], inked[-1] + 1
            at = spans[first]
            # A mark such as (2/3) already shows that a word goes on, and "##" may be written in the text.
            goes_on = spelling.is_piece(name) and seen[at] == 1 and not text.startswith("##", at[0])
            before = "##" if goes_on else _cut(spelt[: len(spelt) - len(spelt.lstrip(_WHITE))])
            after = "…" if end - start > _LONGEST else _cut(spelt[len(spelt.rstrip(_WHITE)) :])
            written = [before, *written[first:last], after]
        elif not written:
            written = [spelt]
        labels.append(show_spaces("".join(written)) + WORD_END * spelling.ends_word(name))
    return labels


def own_offsets(names: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the offsets without those of added spaces, to which tokenizers give the offset of the next token."""
    return [
        (start, start) if name in ("▁", "Ġ") and start == following else (start, end)
        for name, (start, end), (following, _) in zip(names, offsets, [*offsets[1:], (-1, -1)], strict=False)
    ]


def show_spaces(text: str) -> str:
    """Replace line breaks, tabs and spaces by signs; a single space inside remains."""
    return _SPACE.sub("␣", text.translate(_PICTURES))


def bare(label: str) -> str:
    """Return a label without the marks of its vocabulary: spaces and line breaks around it, ## and </w>."""
    return label.removesuffix(WORD_END).strip("".join(["␣▁ĠĊ ", *_PICTURES.values()])).removeprefix("##")


def shown(text: str) -> str:
    """Return a piece of text on one line without control characters, as the label of a word or a sentence."""
    if text.isprintable():  # nothing to replace; a word may be thousands of characters long
        return _trim(text)
    seen = dict.fromkeys(characters(text))
    return _trim("".join(_visible(text[slice(*span)]) for span in seen))


_LONGEST = 64  # the number of code points of a token that its label shows; an [UNK] may stand for a word of any length
_WHITE = " \n\r\t"
_PICTURES = {ord("\n"): "⏎", ord("\r"): "␍", ord("\t"): "⇥"}
_SPACE = re.compile(r"(?<![^\s⏎␍⇥]) | (?![^\s⏎␍⇥])")  # at an end, or beside other white space


def _cut(spelt: str) -> str:
    return spelt if len(spelt) <= _LONGEST else f"{spelt[:_LONGEST]}…"


# --- Characters as people count them ----------------------------------------------------------------------------------

_ZERO_WIDTH_JOINER = "\u200d"


def characters(text: str) -> list[tuple[int, int]]:
    """Return for each code point the (start, end) of the character that it belongs to: 👨‍👩‍👧 is five code points.

    These are grapheme clusters (Unicode UAX 29) as far as texts need them; the standard library lacks them.
    """
    if text.isascii():
        return [(i, i + 1) for i in range(len(text))]
    spans: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and _joins(text, start, end):
            continue
        spans += [(start, end)] * (end - start)
        start = end
    return spans


def _joins(text: str, start: int, end: int) -> bool:
    """Return whether text[end] belongs to the character text[start:end] before it, as an accent does."""
    first, last, following = text[start], text[end - 1], text[end]
    if ord(first) in _PICTURES or _is_loose_byte(first):
        return False
    category = unicodedata.category(following)
    return (
        category in ("Mn", "Mc", "Me")  # accents, vowel signs, variation selectors
        or following == _ZERO_WIDTH_JOINER
        or (last == _ZERO_WIDTH_JOINER and category == "So")  # the next person of 👨‍👩‍👧
        or "\U0001f3fb" <= following <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= following <= "\U000e007f"  # tags, which spell the flag of Scotland
        or (end - start == 1 and _is_regional(first) and _is_regional(following))  # two letters make a flag
    )


def _is_loose_byte(character: str) -> bool:
    """Whether this is a lone surrogate, Python's form of a byte that belongs to no character (surrogateescape)."""
    return "\udc80" <= character <= "\udcff"


def _is_regional(code_point: str) -> bool:
    return "\U0001f1e6" <= code_point <= "\U0001f1ff"


def _visible(character: str) -> str:
    """Return a symbol for a newline or tab, <U+…> for other invisible characters (some reorder a page), or itself."""
    if character in "\n\r\t":
        return character.translate(_PICTURES)
    if _is_loose_byte(character):
        return f"<0x{ord(character) - 0xDC00:02X}>"
    return character if len(character) > 1 or character.isprintable() else f"<U+{ord(character):04X}>"


def _part(number: int, count: int) -> str:
    return f"({number}/{count})" if count > 1 else ""


def _trim(label: str) -> str:
    """Remove the spaces around a label, unless it consists of spaces."""
    return label.strip(" ") or "␣" * len(label)
