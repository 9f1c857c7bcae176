"""`Subwords`: an encoder's tokenizer for many texts or pairs at once: from a checkpoint, or learned from the data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import tokenizers
import tokenizers.models

from headwise.errors import CheckpointError
from headwise.files import replacing
from headwise.tasks.text.frame import Frame
from headwise.tasks.text.wordpieces import MASK, PAD, UNKNOWN, train_wordpieces
from headwise.text import Tokenizer, Tokens, as_tokens
from headwise.text.tokenizer import check_text

FILE = "tokenizer.json"


_PADS, _MASKS, _UNKNOWNS = (PAD, "<pad>"), (MASK, "<mask>"), (UNKNOWN, "<unk>")  # BERT's name, and RoBERTa's


class Pieces(NamedTuple):
    """The tokens of one text, without special tokens such as [CLS]."""

    ids: list[int]
    offsets: list[tuple[int, int]]  # each token is text[start:end], without a leading space


class Read(NamedTuple):
    """One or two texts, and all their tokens, with and without special tokens."""

    texts: tuple[str, ...]
    pieces: list[Pieces]
    encoding: tokenizers.Encoding  # with signs, for `Subwords.named`

    @property
    def size(self) -> int:
        """The number of tokens, special tokens included."""
        return len(self.encoding.ids)


class Subwords:
    """Turns texts, single or in pairs, into ids with signs (special tokens): "[CLS] first [SEP] second [SEP]".

    A sign such as [SEP] inside a text is read as ordinary text (`tokenizer` alone reads it as a sign).

    >>> subwords = Subwords.from_pretrained(default_model())
    >>> subwords.pieces(["Unbelievable!"])[0].ids
    [23653, 999]

    The ids of its signs are `cls` and `sep` (the first and the last), `pad`, `mask` and `unknown`; `frames` has all
    signs around one text and around two.

    Raises:
        CheckpointError: a tokenizer that puts no sign before or after a text, or has no sign for unknown tokens.
    """

    added: tuple[str, ...] = ()  #: the characters that `extended` has added

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._backend = self.backend()
        self._backend.encode_special_tokens = True
        self.frames = Frame.of(self._backend, 1), Frame.of(self._backend, 2)
        before, after = self.frames[0].signs
        unknown = getattr(self._backend.model, "unk_token", None)  # a Unigram model does not have this attribute
        found = self._sign(_UNKNOWNS if unknown is None else [unknown])
        if not before or not after or found is None:
            lacks = "one for what is unknown" if before and after else "signs before and after a text"
            raise CheckpointError(f"expected the tokenizer of a BERT or one of its kind. Received: one without {lacks}")
        self.cls, self.sep, self.unknown = before[0], after[-1], found
        pad, mask = self._sign(_PADS), self._sign(_MASKS)
        self.pad, self.mask = 0 if pad is None else pad, found if mask is None else mask

    @classmethod
    def from_pretrained(cls, folder: Path) -> Subwords:
        """Load the tokenizer of a checkpoint's folder. CheckpointError if there is none, or not an encoder's."""
        return cls(Tokenizer.from_pretrained(folder))

    @classmethod
    def train(cls, texts: Iterable[str], size: int, *, lowercase: bool = True) -> Subwords:
        """Learn the subwords from some texts, by `train_wordpieces`."""
        return cls(train_wordpieces(texts, size, lowercase=lowercase))

    def save(self, folder: Path) -> None:
        """Write tokenizer.json, which `from_pretrained` reads. OSError passes through."""
        with replacing(folder / FILE) as part:
            part.write_text(self.tokenizer.backend.to_str(), encoding="utf-8")

    def backend(self) -> tokenizers.Tokenizer:
        """Return a copy of the tokenizer of the Rust library."""
        return tokenizers.Tokenizer.from_str(self.tokenizer.backend.to_str())

    def __len__(self) -> int:
        return self._backend.get_vocab_size()

    def name(self, number: int) -> str:
        """Return the token with this id, such as "##ing"."""
        return str(self._backend.id_to_token(number))

    def pieces(self, texts: Sequence[str]) -> list[Pieces]:
        """Tokenize each text. All its tokens are returned, without signs.

        Raises:
            DtypeError, ArgumentError: a text that is not a string, or not valid Unicode.
        """
        for text in texts:
            check_text(text)
        found = self._backend.encode_batch(list(texts), add_special_tokens=False)
        return [Pieces(each.ids, self._trimmed(text, each.offsets)) for text, each in zip(texts, found, strict=True)]

    def read(self, texts: Sequence[str]) -> Read:
        """Tokenize one text or a pair; `named` takes the result. Errors as for `pieces`."""
        for text in texts:
            check_text(text)
        encoding = self._backend.encode(texts[0], texts[1] if len(texts) > 1 else None)
        ids, offsets, sequences = encoding.ids, encoding.offsets, encoding.sequence_ids
        pieces = []
        for number in range(len(texts)):
            mine = [place for place, sequence in enumerate(sequences) if sequence == number]
            at = self._trimmed(texts[number], [offsets[place] for place in mine])
            pieces.append(Pieces([ids[place] for place in mine], at))
        return Read(tuple(texts), pieces, encoding)

    def pair(self, first: Sequence[int], second: Sequence[int] | None = None) -> tuple[list[int], list[int]]:
        """Return (the ids that the encoder reads, with signs; the token type of each).

        In BERT the type is 0, or 1 in the second text and its [SEP].
        """
        return self.frames[0].around([first]) if second is None else self.frames[1].around([first, second])

    def size(self, pieces: Sequence[Pieces]) -> int:
        """Return the number of tokens of one or two texts, with signs."""
        return self.frames[len(pieces) - 1].size + sum(len(each.ids) for each in pieces)

    def named(self, read: Read, kept: Sequence[slice]) -> Tokens:
        """Return the tokens that the model reads for a slice of each text, with signs, and with labels for display.

        Args:
            read: the texts.
            kept: for each text the slice of its tokens.
        """
        (tokens,) = as_tokens(read.encoding, read.texts if len(read.texts) == 2 else read.texts[0])
        signs, *pieces = ([i for i, of in enumerate(read.encoding.sequence_ids) if of == n] for n in (None, 0, 1))
        counts = map(len, self.frames[len(read.texts) - 1].signs)
        groups = [[signs.pop(0) for _ in range(count)] for count in counts]
        places = groups[0]
        for some, part, group in zip(pieces, kept, groups[1:], strict=False):
            places = [*places, *some[part], *group]
        return tokens.take(places)

    def extended(self, texts: Iterable[str], least: int = 2) -> Subwords:
        """Return these subwords with new ids at the end, for characters that no token has yet and at least `least`
        texts have.

        Only WordPiece can be extended. Byte-level tokenizers know all characters, and in a Unigram model a new
        character would need a probability.
        """
        if not isinstance(self._backend.model, tokenizers.models.WordPiece):
            return self
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
        backend.model = tokenizers.models.WordPiece(known, unk_token=self.name(self.unknown))
        extended = Subwords(Tokenizer(backend))
        extended.added = tuple(new)
        return extended

    def _sign(self, names: Sequence[str]) -> int | None:
        """Find the id of the sign with one of these names, else of any token with such a name; None if there is none.

        A vocabulary such as MPNet's may have the names of BERT's signs among its words, and use other signs.
        """
        added = self._backend.get_added_tokens_decoder().items()
        signs = {token.content: id_ for id_, token in added if token.special}
        found = [signs.get(name) for name in names] + [self._backend.token_to_id(name) for name in names]
        return next((id_ for id_ in found if id_ is not None), None)

    def _trimmed(self, text: str, offsets: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Move offsets past a token's leading space, which all tokenizers but WordPiece include ("Ġfilm", "▁film")."""
        if isinstance(self._backend.model, tokenizers.models.WordPiece):
            return offsets
        return [(end - len(text[start:end].lstrip()), end) for start, end in offsets]

    def _characters(self, word: str) -> list[str]:
        """Split a word into its smallest pieces: "w", "##o", "##r", "##d"."""
        normalised = self._backend.normalizer.normalize_str(word).strip() if self._backend.normalizer else word
        return [character if i == 0 else f"##{character}" for i, character in enumerate(normalised)]
