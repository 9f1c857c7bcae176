"""Cuts texts into windows of whole words, short enough for the model, and puts windows of similar length together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from headwise.profiles.examples import Window
from headwise.tasks.batching import sorted_batches
from headwise.text import Tokens

Encode = Callable[[str, "int | None"], Tokens]
LONGEST = 50_000  #: the largest number of characters that are read as one text
_LETTERS = 12  # a token has fewer letters on average: so many per token are enough text for a window, and not far more
_END = re.compile(r"\s\S*\Z")


def split_text(text: str) -> Iterator[str]:
    """Yield the text; if it is very long, in parts that end at word ends, so that no text fills the memory."""
    start = 0
    while len(text) - start > LONGEST:
        piece = _whole_words(text[start : start + LONGEST])
        yield piece
        start += len(piece)
    yield text[start:]


def cut_windows(text: str, number: int, encode: Encode, length: int) -> Iterator[Window]:
    """Cut a text into windows of at most `length` tokens each, special tokens included, and yield them.

    A window ends at the end of a word, if a word ends in it. `number` is the number of the text in the corpus.
    """
    start = 0
    while start < len(text):
        piece = text[start : start + _LETTERS * length]
        if start + len(piece) < len(text):
            piece = _whole_words(piece)
        tokens = encode(piece, length)
        if tokens.cut:
            end = max((stop for _, stop in tokens.offsets), default=0)
            if piece[end : end + 1].strip():  # within a word
                end = len(_whole_words(piece[:end]))
            if end == 0:  # the tokenizer gives no character offsets of its tokens: the rest of the piece is skipped
                end = len(piece)
            else:
                piece = piece[:end]
                tokens = encode(piece, length)
        if not all(tokens.special):
            yield Window(number, start, tokens)
        start += len(piece)


def _whole_words(piece: str) -> str:
    """Return a piece of text without its last word, which may be incomplete."""
    return _END.sub("", piece) or piece


def make_batches(windows: Sequence[Window], batch: int) -> list[list[Window]]:
    """Sort windows into batches of similar length: at most `batch` tokens with padding, or one longer window."""
    lengths = [len(each.tokens.ids) for each in windows]
    return [[windows[place] for place in places] for places in sorted_batches(lengths, tokens=batch, size=None)]
