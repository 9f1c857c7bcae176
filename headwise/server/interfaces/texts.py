"""What interfaces read in a row of texts: the texts, and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwise.server.interface import Row
from headwise.server.interfaces.cells import text_of
from headwise.tasks.text.subwords import Pieces, Subwords


class Texts(NamedTuple):
    """The texts of a row that a BERT reads, and all their tokens."""

    texts: tuple[str, ...]
    pieces: list[Pieces]

    @property
    def tokens(self) -> int:
        """The number of tokens: [CLS], and those of each text with its [SEP]."""
        return 1 + sum(len(each.ids) + 1 for each in self.pieces)


class Text(NamedTuple):
    """The text of a row and the ids of all its tokens, with the signs around them."""

    text: str
    ids: Sequence[int]


def texts_of_row(row: Row, columns: Sequence[str], subwords: Subwords) -> Texts:
    """The texts in some columns. Raises DtypeError, ArgumentError."""
    texts = tuple(text_of(row, column) for column in columns)
    return Texts(texts, subwords.pieces(texts))
