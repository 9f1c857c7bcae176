"""The tokens of one text, or of one image, as the model reads them and as a person does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError
from headwise.text import groups

if TYPE_CHECKING:
    from headwise.text.patches import Patches


@dataclass(frozen=True)
class Tokens:
    """One text as a model reads it, and as a person does. Every tuple has one entry a token.

    A label shows the whole characters that its token stands for, and where it helps one of these:

        ##ing      the token continues the word of the token before it (the mark that readers of BERT know)
        🐈(2/3)    three tokens share this one character, and this is the second of them
        ⏎ ⇥ ␣      a newline, a tab, a token that is nothing but a space
        <0xE7>     a byte of a character whose other bytes are not there

    A special token shows its name, [CLS]. An [UNK] shows the text that it hides, where that is known, and is flagged
    in `unknown`.
    """

    ids: tuple[int, ...]  # -1 where only the name of a token is known
    labels: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]  # the tokenizer's own: it read text[start:end]; (0, 0) for what it added
    special: tuple[bool, ...]  # [CLS], [SEP], [MASK]: to the model a sign, not text
    text: str
    cut: int = 0  # how many tokens at the end of the text did not fit
    unknown: tuple[bool, ...] = ()  # the vocabulary has no token for this text: all the model sees is [UNK]
    word_ids: tuple[
        int | None, ...
    ] = ()  # the word of each, as the tokenizer split the text; None: special. (): unknown
    patches: Patches | None = None  # where in an image they lie, if they are an image's

    def __post_init__(self) -> None:
        counts = {len(self.ids), len(self.labels), len(self.offsets), len(self.special)}
        if len(counts) > 1 or not {len(self.unknown), len(self.word_ids)} <= counts | {0}:
            raise ArgumentError(f"tokens: expected tuples of one length. Received: lengths {sorted(counts)}")
        if self.patches is not None and len(self.patches) not in counts:
            raise ArgumentError(f"tokens: expected {len(self.patches)}, one a patch. Received: {len(self.ids)}")

    def words(self) -> groups.Groups:
        """Which tokens make up which word. The rules are those of `headwise.text.groups`."""
        return groups.words(self)

    def sentences(self) -> groups.Groups:
        """Which tokens make up which sentence. The rules are those of `headwise.text.groups`."""
        return groups.sentences(self)
