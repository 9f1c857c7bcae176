"""The tokens of one text, for the model and for people, and the tokens of an image, a grid of patches row by row."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from headwise.errors import ArgumentError
from headwise.text.groups import Groups, number_words, sentence_ends
from headwise.text.labels import shown
from headwise.text.spelling import WORD_END

LABELS = 16  # the number of labels in a `repr`


@dataclass(frozen=True, repr=False)
class Tokens:
    """One tokenized text. Every tuple has one entry per token.

    A label shows the whole characters that its token stands for, and the marks of its vocabulary:

        ␣Mary ⏎⇥   a leading space, as GPT-2's ĠMary and Llama's ▁Mary have it; a newline, a tab
        ##ing      the token continues the previous token's word, as in BERT
        ing</w>    the token ends a word, as in CLIP
        🐈(2/3)    three tokens share this character, and this is the second
        <0xE7>     a byte of a character whose other bytes are missing
        aaaa…      the beginning of a token of more than 64 code points

    A special token shows its name, [CLS]. An [UNK] shows the text behind it, if that is known, and is flagged in
    `unknown`.
    """

    ids: tuple[int, ...]  # -1 if only the name of a token is known
    labels: tuple[str, ...]
    offsets: tuple[tuple[int, int], ...]  # offsets of the tokenizer: text[start:end]; (0, 0) for tokens that it added
    special: tuple[bool, ...]  # whether the token is special: [CLS], [SEP], [MASK]
    text: str
    cut: int = 0  # number of tokens cut from the end of the text
    unknown: tuple[bool, ...] = ()  # whether the vocabulary lacks this text, so that the model reads [UNK]
    word_ids: tuple[int | None, ...] = ()  # the tokenizer's word of each token; None = special. () = unknown
    patches: Patches | None = None  # for tokens of an image: their positions
    seconds: float | None = field(default=None, metadata={"since": 3})  # for a sound: the seconds of each token

    def __post_init__(self) -> None:
        counts = {len(self.ids), len(self.labels), len(self.offsets), len(self.special)}
        if len(counts) > 1 or not {len(self.unknown), len(self.word_ids)} <= counts | {0}:
            raise ArgumentError(f"tokens: expected tuples of one length. Received: lengths {sorted(counts)}")
        if self.patches is not None and len(self.patches) not in counts:
            raise ArgumentError(f"tokens: expected {len(self.patches)}, one a patch. Received: {len(self.ids)}")

    @classmethod
    def of_names(cls, labels: Sequence[str], text: str = "") -> Tokens:
        """Make `Tokens` for positions that are not text, by name: numbers, latents, time steps. `text`: a title."""
        no = (False,) * len(labels)
        return cls((-1,) * len(labels), tuple(labels), ((0, 0),) * len(labels), no, text, 0, no)

    @property
    def unknown_count(self) -> int:
        """The number of tokens that the vocabulary lacks: the model reads [UNK] in their place."""
        return sum(self.unknown)

    def __repr__(self) -> str:
        begin = " ".join(self.labels[:LABELS]) + (" …" if len(self.labels) > LABELS else "")
        cut = f", {self.cut} cut" if self.cut else ""
        return f"Tokens({len(self.labels)}{cut}: {begin})"

    def take(self, places: Sequence[int]) -> Tokens:
        """Return only the tokens at these indices, as `Tokens`. `cut` grows by the number of tokens left out."""
        fields = ("ids", "labels", "offsets", "special", "unknown", "word_ids")
        kept: dict[str, Any] = {
            name: tuple([values[i] for i in places]) for name in fields if (values := getattr(self, name))
        }
        return replace(self, cut=self.cut + len(self.ids) - len(places), **kept)

    def words(self) -> Groups:
        """Group the tokens into words, by the rules of `headwise.text.groups`; each patch of an image is a group."""
        return self._grouped(number_words(self.text, self.offsets, self.special, self.word_ids), "words")

    def sentences(self) -> Groups:
        """Group the tokens into sentences, by the rules of `headwise.text.groups`; each patch is a group."""
        ends = sentence_ends(self.text)
        numbers: list[object] = []
        parts = 0  # number of special tokens that ended a sentence so far
        for span in self.words().spans:  # in token order; a word's tokens are consecutive
            first = span[0]
            if self.special[first]:
                parts += "mask" not in self.labels[first].lower()
            if self.special[first] or self.patches is not None:
                numbers.append(first)
            else:
                inked = (at for i in span for at in range(*self.offsets[i]) if not self.text[at].isspace())
                start = next(inked, self.offsets[first][0])
                numbers += [(parts, bisect_right(ends, start))] * len(span)
        return self._grouped(numbers, "sentences")

    def _grouped(self, numbers: Sequence[object], level: str) -> Groups:
        """Put the tokens with the same number into one group. Groups are in the order of their first tokens."""
        spans: dict[object, list[int]] = {}
        for token, number in enumerate(numbers):
            spans.setdefault(number, []).append(token)
        labels = []
        for span in spans.values():
            read = [self.offsets[i] for i in span if self.offsets[i][0] < self.offsets[i][1]]
            if self.special[span[0]] or not read:
                labels.append("".join(self.labels[i] for i in span))
            else:
                text = self.text[min(start for start, _ in read) : max(end for _, end in read)]
                labels.append(shown(" ".join(text.split()) or text))
        return Groups(tuple(labels), tuple(map(tuple, spans.values())), level)


def cut_at_tokens(tokens: Tokens) -> tuple[list[str], list[str]]:
    """Return (the text between each token and the token before it, the text or label of each token).

    Joined, they are the text: each character once, and again only in labels with marks such as 🐈(2/3).
    """
    gaps, pieces, end = [], [], 0
    for label, (start, stop), special in zip(tokens.labels, tokens.offsets, tokens.special, strict=True):
        gap, piece = "", label.removesuffix(WORD_END)
        if end <= start < stop:
            gap, piece = tokens.text[end:start], tokens.text[start:stop]
        elif start < end < stop:  # bytes of a character that is already shown, and more
            piece = label[: label.find(")") + 1] + tokens.text[end:stop]
        elif end < start == stop and not special and tokens.text[end:start].isspace():
            piece, end = tokens.text[end:start], start  # a space that the tokenizer's offsets leave out
        gaps.append(gap)
        pieces.append(piece)
        end = max(end, stop)
    return gaps, pieces


@dataclass(frozen=True)
class Patches:
    """The patches of an image, `rows` × `cols` from the top left, after the tokens named in `prefix`.

    >>> vit = Patches.of_image((224, 224), patch=16)  # one [CLS], 14 rows, 14 columns
    >>> len(vit), vit.labels[:3], vit.position(15), vit.index(1, 0)
    (197, ('[CLS]', '(0, 0)', '(0, 1)'), (1, 0), 15)

    A model without [CLS] has `prefix=()`; one with four register tokens has ("[CLS]", "[REG1]", …, "[REG4]").

    Raises:
        ArgumentError: fewer than one row or column.
    """

    rows: int
    cols: int
    prefix: tuple[str, ...] = ("[CLS]",)

    def __post_init__(self) -> None:
        if self.rows < 1 or self.cols < 1:
            raise ArgumentError(f"patches: expected at least 1 row and 1 column. Received: {self.rows} × {self.cols}")
        if isinstance(self.prefix, str):
            raise ArgumentError(
                f"patches: expected a tuple of names, ({self.prefix!r},). Received: prefix={self.prefix!r}"
            )
        object.__setattr__(self, "prefix", tuple(self.prefix))

    @classmethod
    def of_image(
        cls, image: tuple[int, int], patch: int | tuple[int, int], prefix: tuple[str, ...] = ("[CLS]",)
    ) -> Patches:
        """Make the patches of an image of (height, width) pixels; `patch` is (height, width), or one number for both.

        Raises:
            ArgumentError: the patches do not cover the image exactly.
        """
        height, width = (patch, patch) if isinstance(patch, int) else patch
        if min(height, width, *image) < 1 or image[0] % height or image[1] % width:
            raise ArgumentError(
                f"patches: {image[0]} × {image[1]} pixels cannot be divided into patches of {height} × {width}. "
                "Pass the size of the image as the model reads it"
            )
        return cls(image[0] // height, image[1] // width, prefix)

    def __len__(self) -> int:
        return len(self.prefix) + self.rows * self.cols

    @property
    def labels(self) -> tuple[str, ...]:
        """The names in `prefix`, then "(row, column)" for each patch; rows and columns count from 0."""
        return (*self.prefix, *(f"({row}, {col})" for row in range(self.rows) for col in range(self.cols)))

    def position(self, token: int) -> tuple[int, int] | None:
        """Return the (row, column) of a token; None in the prefix. Raises ArgumentError for a token out of range."""
        if not 0 <= token < len(self):
            raise ArgumentError(f"patches: expected one of the tokens 0 … {len(self) - 1}. Received: token={token}")
        patch = token - len(self.prefix)
        return None if patch < 0 else divmod(patch, self.cols)

    def index(self, row: int, col: int) -> int:
        """Return the index of the token for the patch in this row and column. ArgumentError outside of the grid."""
        if not (0 <= row < self.rows and 0 <= col < self.cols):
            raise ArgumentError(
                f"patches: expected rows 0 … {self.rows - 1}, columns 0 … {self.cols - 1}. Received: ({row}, {col})"
            )
        return len(self.prefix) + row * self.cols + col

    def tokens(self) -> Tokens:
        """Return the patches as `Tokens` without text; the tokens of the prefix are special."""
        special = tuple(i < len(self.prefix) for i in range(len(self)))
        return replace(Tokens.of_names(self.labels), special=special, word_ids=(None,) * len(self), patches=self)
