"""Rebuilds a text from its tokens, if the original text is not available.

Each token spells some bytes of UTF-8 (`Spelling`), so a character that is split over several tokens becomes whole
again, and every token knows its characters.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.text.spelling import WORD_END, Spelling, is_sign

if TYPE_CHECKING:
    from tokenizers import Encoding

Span = tuple[int, int]


def rebuild_from_offsets(encoding: Encoding, special: list[bool], spelling: Spelling) -> tuple[str, list[Span]]:
    """Return (the text that the tokens spell, the offset of each token in it).

    `encoding` has the tokenizer's offsets. In a vocabulary whose names do not show spaces, a gap between them is a
    space.
    """
    names, offsets, sequences = encoding.tokens, encoding.offsets, encoding.sequence_ids
    parts: list[Part | None] = []
    end_before, word_before, sequence_before = 0, None, None
    section = 0  # start of the text, before which the tokenizer may have added a space
    apart = False  # separated by special tokens, or in the other text of a pair
    for i, (name, (start, end), word) in enumerate(zip(names, offsets, encoding.word_ids, strict=True)):
        if special[i] and start == end:
            parts.append(None)
            apart, section, end_before = True, 0, 0
            continue
        if sequences[i] != sequence_before:
            apart, section, end_before = True, 0, 0
        gap = start > end_before or (start < end_before and word != word_before)  # pre-split words: each starts at 0
        if special[i]:
            spelt = name.strip(" ").encode()
            gap = gap or end - start > len(spelt)
            section = end
        else:
            within = word is not None and word == word_before and not special[i - 1]
            spelt = spelling.find_bytes(name[2:] if spelling.is_piece(name) and within else name)
            if spelling.has_spaces and start == section and (i == 0 or special[i - 1] or apart):
                followers = offsets[i + 1 : i + 2] if not any(special[i + 1 : i + 2]) else []
                spelt = _without_added_space(spelt, (start, end), followers)
            gap = gap and not spelling.has_spaces
        parts.append(Part(spelt, "\n" if apart else " " if gap else ""))
        end_before, word_before, sequence_before, apart = end, word, sequences[i], False
    return _join(parts)


def _without_added_space(spelt: bytes, read: Span, followers: list[Span]) -> bytes:
    """Remove the first token's leading space if the tokenizer added it: then the token's offset is too short for it."""
    shared = any(start == read[0] for start, _ in followers)
    added = shared or read[1] - read[0] < len(spelt.decode("utf-8", "replace"))
    return spelt.removeprefix(b" ") if added else spelt


def rebuild_from_names(names: list[str], special: list[bool], spelling: Spelling) -> tuple[str, list[Span], list[bool]]:
    """Return (the text that the tokens spell, the offset of each token, for each token whether it begins a word)."""
    parts: list[Part | None] = []
    begins = []
    words = [name.removesuffix(WORD_END) for name in names]
    before = ""  # the name of the previous token; "" after a special token
    apart = False
    for i, (name, sign) in enumerate(zip(names, special, strict=True)):
        if sign and "mask" not in name.lower():
            parts.append(None)
            begins.append(False)
            before, apart = "", True
            continue
        piece, between = name.encode("utf-8", "replace") if sign else spelling.find_bytes(name), ""
        continues = bool(before) and not sign and not is_sign(before)
        if spelling.has_spaces:
            if spelling.spaces_are_marked and not before:
                piece = piece.removeprefix(b" ")  # sentencepiece adds a space
            between = " " if sign and before and parts[-1] and not parts[-1].spelt[-1:].isspace() else ""
            continues = continues and not name.startswith("▁")
        else:
            continues = continues and spelling.continues(name, before)
            if continues and spelling.is_piece(name):
                piece = spelling.find_bytes(name[2:])
            between = "" if continues or not before or _touch(words[max(0, i - 2) : i + 1]) else " "
        parts.append(Part(piece, "\n" if apart else between))
        begins.append(not (sign or continues))
        before, apart = name, False
    return *_join(parts), begins


def _touch(words: list[str]) -> bool:
    """Whether no space is before the last of two or three words ("Dr.", "3.5"). Names of tokens do not show it."""
    earlier, before, word = words if len(words) == 3 else ["", *words]
    number = earlier.isdigit() and before in (".", ",") and word.isdigit()
    return number or word in _CLOSING or before in _OPENING


_CLOSING = frozenset(".,!?;:)]}%。，！？；：、”’")
_OPENING = frozenset("([{“‘$")


@dataclass(frozen=True)
class Part:
    """The UTF-8 bytes of one token, and the text between it and the token before, such as a space."""

    spelt: bytes
    between: str = ""


def _join(parts: Iterable[Part | None]) -> tuple[str, list[Span]]:
    """Return (the joined text, the offset of each token). A byte that is in no character becomes a lone surrogate."""
    data = bytearray()
    ranges = []
    for part in parts:
        if part is None:
            ranges.append((0, 0))
            continue
        if data:
            data += part.between.encode()
        ranges.append((len(data), len(data) + len(part.spelt)))
        data += part.spelt
    text = data.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text, ranges
    character_of = [i for i, character in enumerate(text) for _ in character.encode("utf-8", "surrogateescape")]
    character_of.append(len(text))
    return text, [(character_of[a], character_of[b - 1] + 1 if b > a else character_of[a]) for a, b in ranges]


def without_loose_bytes(text: str) -> str:
    """Replace each byte that is part of no character by �, so that the text can be written to a file."""
    return _LOOSE_BYTE.sub("\ufffd", text)


_LOOSE_BYTE = re.compile("[\udc80-\udcff]")
