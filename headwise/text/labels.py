"""Labels of tokens: the whole characters that a token covers, with visible signs for invisible characters."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

# Characters that are words by themselves, so a mark that they continue a word would be meaningless.
HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
HIRAGANA = "\u3041-\u309f"
BY_ITSELF = re.compile(f"[{HAN}{HIRAGANA}]")


def label(
    text: str,
    names: Sequence[str],
    offsets: Sequence[tuple[int, int]],
    word_ids: Sequence[int | None],
    special: Sequence[bool],
) -> list[str]:
    """Make the label of each token of `text`; the docstring of `Tokens` describes labels.

    Args:
        text: the text that the offsets point into.
        names: for each token its spelling in the vocabulary, which is the label of a special token.
        offsets: for each token (start, end): the token covers text[start:end].
        word_ids: for each token the number of its word (pieces of one word have the same number); None = in no word.
        special: for each token whether it is a special token, not text.
    """
    character_at = characters(text)
    # The whole characters of each token, even if it holds only some bytes of one.
    touched = [
        [] if sign or added else list(dict.fromkeys(character_at[start : min(end, start + _LONGEST)]))
        for (start, end), sign, added in zip(offsets, special, _added_spaces(names, offsets), strict=True)
    ]
    sharing = Counter(span for spans in touched for span in spans)
    seen: Counter[tuple[int, int]] = Counter()
    labels = []
    for i, (word_before, word) in enumerate(pairwise([None, *word_ids])):
        spans = touched[i]
        seen.update(spans)
        if special[i]:
            name = names[i].strip(" ")  # some names include the space before the token
        elif not spans:  # byte-level tokenizers may give a lone space an empty offset
            name = _trim(names[i].translate(_SPACES))
        else:
            name = _trim("".join(_visible(text[slice(*span)]) + _part(seen[span], sharing[span]) for span in spans))
            name = name if offsets[i][1] - offsets[i][0] <= _LONGEST else f"{name[:_LONGEST]}…"
            start = spans[0][0]
            continues = (
                word is not None
                and word == word_before
                and touched[i - 1]  # after an invisible space it begins the word
                and seen[spans[0]] == 1  # otherwise the mark (2/3) shows it
                and not (text[start].isspace() or _is_loose_byte(text[start]))
                and not text[start - 1].isspace()  # " w" in two tokens: the second begins the word
                and not (BY_ITSELF.match(text, start) or BY_ITSELF.match(text, start - 1))
            )
            name = f"##{name}" if continues else name
        labels.append(name)
    return labels


def shown(text: str) -> str:
    """Return a piece of text on one line without control characters, as the label of a word or a sentence."""
    if text.isprintable():  # nothing to replace; a word may be thousands of characters long
        return _trim(text)
    seen = dict.fromkeys(characters(text))
    return _trim("".join(_visible(text[slice(*span)]) for span in seen))


_LONGEST = 64  # the number of code points of a token that its label shows; an [UNK] may stand for a word of any length
_SPACES = str.maketrans("▁Ġ", "  ")  # spaces in the vocabularies of sentencepiece and GPT-2


def _added_spaces(names: Sequence[str], offsets: Sequence[tuple[int, int]]) -> list[bool]:
    """Return for each token whether it is only an added space: the tokenizer gave it the offset of the next token."""
    return [
        name in ("▁", "Ġ") and start == following
        for name, (start, _), (following, _) in zip(names, offsets, [*offsets[1:], (-1, -1)], strict=False)
    ]


# --- Characters as people count them ----------------------------------------------------------------------------------

_ZERO_WIDTH_JOINER = "\u200d"
_PICTURES = {"\n": "⏎", "\r": "␍", "\t": "⇥"}


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
    if first in _PICTURES or _is_loose_byte(first):
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
    if character in _PICTURES:
        return _PICTURES[character]
    if _is_loose_byte(character):
        return f"<0x{ord(character) - 0xDC00:02X}>"
    return character if len(character) > 1 or character.isprintable() else f"<U+{ord(character):04X}>"


def _part(number: int, count: int) -> str:
    return f"({number}/{count})" if count > 1 else ""


def _trim(label: str) -> str:
    """Remove the spaces around a label, unless it consists of spaces."""
    return label.strip(" ") or "␣" * len(label)
