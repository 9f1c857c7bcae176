"""The tokens of one text or image, for the model and for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError
from headwise.text import groups

if TYPE_CHECKING:
    from headwise.text.patches import Patches

LABELS = 16  # of a `repr`


@dataclass(frozen=True, repr=False)
class Tokens:
    """One tokenized text. Every tuple has one entry per token.

    A label shows the whole characters that its token stands for, and in some cases one of these marks:

        ##ing      the token continues the previous token's word (as in BERT)
        🐈(2/3)    three tokens share this character, and this is the second
        ⏎ ⇥ ␣      a newline, a tab, a token that is only a space
        <0xE7>     a byte of a character whose other bytes are missing
        aaaa…      the beginning of a token of more than 64 code points

    A special token shows its name, [CLS]. An [UNK] shows the text behind it, if that is known, and is flagged in
    `unknown`.
    """

    ids: tuple[int, ...]  # -1 if only the name of a token is known
    labels: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]  # offsets of the tokenizer: text[start:end]; (0, 0) for tokens that it added
    special: tuple[bool, ...]  # [CLS], [SEP], [MASK]
    text: str
    cut: int = 0  # number of tokens cut from the end of the text
    unknown: tuple[bool, ...] = ()  # the vocabulary lacks this text: the model reads [UNK]
    word_ids: tuple[int | None, ...] = ()  # the tokenizer's word of each token; None = special. () = unknown
    patches: Patches | None = None  # for tokens of an image: their positions
    seconds: float | None = field(default=None, metadata={"since": 3})  # for tokens of a sound: the length of each

    def __post_init__(self) -> None:
        counts = {len(self.ids), len(self.labels), len(self.offsets), len(self.special)}
        if len(counts) > 1 or not {len(self.unknown), len(self.word_ids)} <= counts | {0}:
            raise ArgumentError(f"tokens: expected tuples of one length. Received: lengths {sorted(counts)}")
        if self.patches is not None and len(self.patches) not in counts:
            raise ArgumentError(f"tokens: expected {len(self.patches)}, one a patch. Received: {len(self.ids)}")

    @classmethod
    def of_names(cls, labels: Sequence[str], text: str = "") -> Tokens:
        """Names of positions that are not tokens of a text: numbers, learned latents, time steps. `text`: a title."""
        no = (False,) * len(labels)
        return cls((-1,) * len(labels), tuple(labels), ((0, 0),) * len(labels), no, text, 0, no)

    @property
    def unknown_count(self) -> int:
        """The number of tokens that the model does not know: it reads [UNK] in their place."""
        return sum(self.unknown)

    def __repr__(self) -> str:
        begin = " ".join(self.labels[:LABELS]) + (" …" if len(self.labels) > LABELS else "")
        cut = f", {self.cut} cut" if self.cut else ""
        return f"Tokens({len(self.labels)}{cut}: {begin})"

    def take(self, places: Sequence[int]) -> Tokens:
        """Some of the tokens; `cut` grows by the number of the others."""
        fields = ("ids", "labels", "offsets", "special", "unknown", "word_ids")
        kept: dict[str, Any] = {
            name: tuple([values[i] for i in places]) for name in fields if (values := getattr(self, name))
        }
        return replace(self, cut=self.cut + len(self.ids) - len(places), **kept)

    def words(self) -> groups.Groups:
        """The tokens grouped into words. The rules are those of `headwise.text.groups`."""
        return groups.words(self)

    def sentences(self) -> groups.Groups:
        """The tokens grouped into sentences. The rules are those of `headwise.text.groups`."""
        return groups.sentences(self)
