"""`Subwords`: a BERT's tokenizer for many texts, and pairs of texts, at once: a checkpoint's, or one of the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
import tokenizers.models

from headwise.errors import CheckpointError
from headwise.files import replacing
from headwise.tasks.text.wordpieces import BEGIN, END, MASK, PAD, SIGNS, UNKNOWN, train_wordpieces
from headwise.text import Tokenizer, Tokens, as_tokens
from headwise.text.tokenizer import check_text

FILE = "tokenizer.json"


class Pieces(NamedTuple):
    """A text's tokens without [CLS] and [SEP]."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # each token is text[start:end]


class Read(NamedTuple):
    """One or two texts, and all their tokens."""

    texts: tuple[str, ...]
    pieces: list[Pieces]
    encoding: tokenizers.Encoding  # with [CLS] and [SEP], for `Subwords.named`

    @property
    def size(self) -> int:
        """The number of tokens, with [CLS] and a [SEP] for each text."""
        return size_of(self.pieces)


def size_of(pieces: Sequence[Pieces]) -> int:
    """The number of tokens of one or two texts, with [CLS] and a [SEP] for each."""
    return 1 + sum(len(each.ids) + 1 for each in pieces)


class Subwords:
    """Texts to ids, singly or in pairs: "[CLS] first [SEP]", "[CLS] first [SEP] second [SEP]".

    Signs such as [SEP] that stand in a text are text, but not for `tokenizer`.

    >>> subwords = Subwords.from_pretrained(default_model())
    >>> subwords.pieces(["Unbelievable!"])[0].ids
    [23653, 999]

    Raises:
        CheckpointError: a tokenizer that has no [CLS], [SEP] or [UNK].
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._backend = self.backend()
        self._backend.encode_special_tokens = True
        found = {name: self._backend.token_to_id(name) for name in SIGNS}
        ids = {name: id_ for name, id_ in found.items() if id_ is not None}
        if missing := [name for name in (BEGIN, END, UNKNOWN) if name not in ids]:
            raise CheckpointError(f"expected the tokenizer of a BERT. Received: one without {', '.join(missing)}")
        self.cls, self.sep, self.unknown = ids[BEGIN], ids[END], ids[UNKNOWN]
        self.pad, self.mask = ids.get(PAD, 0), ids.get(MASK, self.unknown)

    @classmethod
    def from_pretrained(cls, folder: Path) -> Subwords:
        """The tokenizer of a checkpoint's folder. CheckpointError if there is none, or it is not a BERT's."""
        return cls(Tokenizer.from_pretrained(folder))

    @classmethod
    def train(cls, texts: Iterable[str], size: int, *, lowercase: bool = True) -> Subwords:
        """A vocabulary of some texts, as `train_wordpieces` learns it."""
        return cls(train_wordpieces(texts, size, lowercase=lowercase))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, which `from_pretrained` reads. OSError passes through."""
        with replacing(folder / FILE) as part:
            part.write_text(self.tokenizer.backend.to_str(), encoding="utf-8")

    def backend(self) -> tokenizers.Tokenizer:
        """A copy of the tokenizer of the Rust library."""
        return tokenizers.Tokenizer.from_str(self.tokenizer.backend.to_str())

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def name(self, number: int) -> str:
        """The token of an id: "##ing"."""
        return str(self._backend.id_to_token(number))

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """The tokens of each text, all of them.

        Raises:
            DtypeError, ArgumentError: a text that is no string, or not valid Unicode.
        """
        for text in texts:
            check_text(text)
        found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [Pieces(each.ids, each.offsets) for each in found]

    def read(self, texts: Sequence[str]) -> Read:
        """One text, or a pair, for `named` too. Errors as of `pieces`."""
        for text in texts:
            check_text(text)
        encoding = self._backend.encode(texts[0], texts[1] if len(texts) > 1 else None)
        ids, offsets, sequences = encoding.ids, encoding.offsets, encoding.sequence_ids
        pieces = []
        for number in range(len(texts)):
            mine = [place for place, sequence in enumerate(sequences) if sequence == number]
            pieces.append(Pieces([ids[place] for place in mine], [offsets[place] for place in mine]))
        return Read(tuple(texts), pieces, encoding)

    def pair(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """The ids that BERT reads, and which text each is from: 0, or 1 in the second and at its [SEP]."""
        ids = [self.cls, *first, self.sep]
        types = [0] * len(ids)
        if second is not None:
            ids, types = [*ids, *second, self.sep], types + [1] * (len(second) + 1)
        return ids, types

    def named(self, read: Read, kept: Sequence[slice]) -> Tokens:
        """What `pair` makes of some pieces of one or two texts, with labels that a person can read.

        Args:
            read: the texts.
            kept: which pieces of each.
        """
        (tokens,) = as_tokens(read.encoding, read.texts if len(read.texts) == 2 else read.texts[0])
        signs, *pieces = ([i for i, of in enumerate(read.encoding.sequence_ids) if of == n] for n in (None, 0, 1))
        places = signs[:1]
        for some, part, sign in zip(pieces, kept, signs[1:], strict=False):
            places += [*some[part], sign]
        return tokens.take(places)

    def extended(self, texts: Iterable[str], least: int = 2) -> Subwords:
        """With the characters that stand in `least` of the texts and in no token yet: these get the last ids."""
        vocabulary = self._backend.get_vocab()
        counts: Counter[str] = Counter()
        texts = list(texts)
        for text, pieces in zip(texts, self.pieces(texts), strict=True):
            unknown = {text[slice(*at)] for id_, at in zip(*pieces, strict=True) if id_ == self.unknown}
            counts.update({piece for word in unknown for piece in self._characters(word) if piece not in vocabulary})
        new = sorted(piece for piece, count in counts.items() if count >= least)
        if not new:
            return self
        backend = self.backend()
        known = backend.get_vocab(with_added_tokens=False)
        known |= {piece: len(self) + number for number, piece in enumerate(new)}
        backend.model = tokenizers.models.WordPiece(known, unk_token=UNKNOWN)
        return Subwords(Tokenizer(backend))

    def _characters(self, word: str) -> list[str]:
        """A word, which the tokenizer has for one, in the smallest pieces: "w", "##o", "##r", "##d"."""
        normalised = self._backend.normalizer.normalize_str(word).strip() if self._backend.normalizer else word
        return [character if i == 0 else f"##{character}" for i, character in enumerate(normalised)]
