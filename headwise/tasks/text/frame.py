"""The signs (special tokens) that a tokenizer puts around one text or two: "[CLS] … [SEP]", "<s> … </s></s> … </s>"."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tokenizers


class Frame(NamedTuple):
    """The signs (special tokens) before, between and after texts, and the token types of signs and texts.

    One text has two groups of signs (before, after), two texts have three.
    """

    signs: tuple[tuple[int, ...], ...]
    types_of_signs: tuple[tuple[int, ...], ...]
    types: tuple[int, ...]  # the token type of each text

    @classmethod
    def of(cls, backend: tokenizers.Tokenizer, texts: int) -> Frame:
        """Find the signs that a tokenizer puts around one text or two, by encoding the text "a"."""
        encoding = backend.encode("a", "a" if texts == 2 else None)
        signs: list[list[int]] = [[] for _ in range(texts + 1)]
        types_of_signs: list[list[int]] = [[] for _ in range(texts + 1)]
        types, place = [0] * texts, 0
        for id_, text, type_ in zip(encoding.ids, encoding.sequence_ids, encoding.type_ids, strict=True):
            if text is None:
                signs[place].append(id_)
                types_of_signs[place].append(type_)
            else:
                place, types[text] = text + 1, type_
        return cls(tuple(map(tuple, signs)), tuple(map(tuple, types_of_signs)), tuple(types))

    @property
    def size(self) -> int:
        """The number of signs (special tokens)."""
        return sum(map(len, self.signs))

    def around(self, texts: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
        """Put the signs around the texts. Returns (the ids of texts and signs, the token type of each)."""
        ids, types = [*self.signs[0]], [*self.types_of_signs[0]]
        after = zip(texts, self.types, self.signs[1:], self.types_of_signs[1:], strict=True)
        for text, type_, signs, types_of_signs in after:
            ids += [*text, *signs]
            types += [*[type_] * len(text), *types_of_signs]
        return ids, types
