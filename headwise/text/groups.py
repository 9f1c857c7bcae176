"""Which tokens make up which word, and which sentence: attention is easier to read between those than between pieces.

Every token is in exactly one group, so nothing is lost: a group knows its tokens, and a token its group. A special
token is a group of its own.

**Words** are what stands between white space, cut further where the tokenizer cut between letters, digits,
punctuation and symbols: BERT has don ' t, GPT-2 has don 't, and sentencepiece, which cuts only at spaces, has don't;
but in each of them "dog." is two words. Letters in a row are one word, and so are digits, whatever the tokenizer made
of them: 1990 in four tokens is one number. A Chinese character or a hiragana is a word, unless one token holds several.
Tokens that share a character are in one word. A space belongs to the word it stands before; newlines, tabs and spaces
that a tokenizer reads by themselves are groups. Other languages without spaces between words (Thai) are not cut.

**Sentences** end at newlines, at 。！？ and at . ! ? … followed by white space, with the quotes and brackets that close
there; but not before a small letter (where the text has capitals), and a point not after an initial (J. Smith), an
abbreviation (Dr., No. 5) or the number of a list item ("1. Open"). A special token other than a mask ends one too, so
sentences never cross a [SEP]. This is simple by intention: a title that is not in the list below ends a sentence. A
word is never cut.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headwise.errors import ArgumentError
from headwise.text.labels import characters, shown

if TYPE_CHECKING:
    from headwise.text.tokens import Tokens


@dataclass(frozen=True)
class Groups:
    """Groups of tokens: words, sentences, or any division of one's own.

    >>> words = tokens.words()
    >>> words.labels, words.spans
    (('[CLS]', 'unrelatably', 'tired', '[SEP]'), ((0,), (1, 2, 3, 4), (5,), (6,)))

    Raises:
        ArgumentError: there is not one label a group, or a token is in no group or in several.
    """

    labels: tuple[str, ...]
    spans: tuple[tuple[int, ...], ...]  # the tokens of each group, ascending; a [MASK] may part a sentence's
    level: str = "groups"  # "words", "sentences"

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.spans):
            raise ArgumentError(f"groups: expected a label a group. Received: {len(self.labels)} for {len(self.spans)}")
        tokens = sorted(token for span in self.spans for token in span)
        if tokens != list(range(len(tokens))):
            wrong = next((i for i, token in enumerate(tokens) if token != i), 0)
            raise ArgumentError(
                f"groups: expected every token 0 … {len(tokens) - 1} in exactly one group. Received: token {wrong} in "
                f"{tokens.count(wrong)}"
            )

    def __len__(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def index(self) -> tuple[int, ...]:
        """The group of each token."""
        group = {token: i for i, span in enumerate(self.spans) for token in span}
        return tuple(group[token] for token in range(len(group)))

    def tokens_of(self, group: int) -> tuple[int, ...]:
        """The tokens of a group. ArgumentError, with the range, for one that is not there."""
        if not 0 <= group < len(self.spans):
            raise ArgumentError(f"groups: the {self.level} are 0 … {len(self.spans) - 1}. Received: {group}")
        return self.spans[group]

    def group_of(self, token: int) -> int:
        """The group that a token is in. ArgumentError, with the range, for one that is not there."""
        if not 0 <= token < len(self.index):
            raise ArgumentError(f"groups: tokens are 0 … {len(self.index) - 1}. Received: {token}")
        return self.index[token]


def words(tokens: Tokens) -> Groups:
    """The words of a text, by the rules above; each patch of an image by itself."""
    return _groups(tokens, number_words(tokens.text, tokens.offsets, tokens.special, tokens.word_ids), "words")


def sentences(tokens: Tokens) -> Groups:
    """The sentences of a text, by the rules above; each patch of an image by itself."""
    ends = _sentence_ends(tokens.text)
    numbers: list[object] = []
    parts = 0  # how many special tokens have ended a sentence so far
    for span in words(tokens).spans:  # in the order of the tokens, of which each has some in a row
        first = span[0]
        if tokens.special[first]:
            parts += "mask" not in tokens.labels[first].lower()
        if tokens.special[first] or tokens.patches is not None:
            numbers.append(first)
        else:
            inked = (at for i in span for at in range(*tokens.offsets[i]) if not tokens.text[at].isspace())
            start = next(inked, tokens.offsets[first][0])
            numbers += [(parts, bisect_right(ends, start))] * len(span)
    return _groups(tokens, numbers, "sentences")


def _groups(tokens: Tokens, numbers: Sequence[object], level: str) -> Groups:
    """The tokens with the same number as groups, in the order of their first tokens."""
    spans: dict[object, list[int]] = {}
    for token, number in enumerate(numbers):
        spans.setdefault(number, []).append(token)
    labels = []
    for span in spans.values():
        read = [tokens.offsets[i] for i in span if tokens.offsets[i][0] < tokens.offsets[i][1]]
        if tokens.special[span[0]] or not read:
            labels.append("".join(tokens.labels[i] for i in span))
        else:
            text = tokens.text[min(start for start, _ in read) : max(end for _, end in read)]
            labels.append(shown(" ".join(text.split()) or text))
    return Groups(tuple(labels), tuple(map(tuple, spans.values())), level)


# --- Words ------------------------------------------------------------------------------------------------------------

_IN_WORDS = "'’._·"  # between letters: don't, U.S
_IN_NUMBERS = ".,_"


def number_words(
    text: str,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    word_ids: Sequence[int | None] = (),
) -> list[int]:
    """For each token the number of its word, from 0. `word_ids` are the tokenizer's, () if they are not known."""
    character_at = characters(text)
    numbers: list[int] = []
    for i, here in enumerate(offsets):
        if i == 0 or special[i] or special[i - 1]:
            begins = True
        else:
            same = word_ids[i] == word_ids[i - 1] if word_ids else None
            begins = _begins(text, character_at, offsets[i - 1], here, same)
        numbers.append(begins + (numbers[-1] if numbers else -1))
    return numbers


def _begins(
    text: str,
    character_at: list[tuple[int, int]],
    before: tuple[int, int],
    here: tuple[int, int],
    same: bool | None,
) -> bool:
    """Whether a token begins a word. `same`: the tokenizer has it in the word of the token before; None = unknown."""
    (_, end), (start, stop) = before, here
    if start == stop or (text[start].isspace() and not end > start):  # a space, or nothing at all
        return True
    if before[0] == end:  # a space without an offset of its own, before this token
        return same is False
    last, first = character_at[end - 1], character_at[start]
    if last == first:
        return False
    if any(map(str.isspace, text[end:start])):
        return True
    if text[end - 1].isspace():
        return same is False or text[slice(*before)].strip(" ") != ""
    a, b = _kind(text[last[0]]), _kind(text[first[0]])
    if a == b and a in "LN":
        return False
    if same is False or "H" in (a, b):
        return True
    if a == b:
        return unicodedata.category(text[first[0]]) in ("Ps", "Pi")  # what opens a bracket or quotation
    if a in "LN" and b in "LN":
        return same is None
    return same is None or not (_is_inside(text, last[0]) or _is_inside(text, first[0]))


def _kind(character: str) -> str:
    """H for what is a word by itself, L letter, N number, P punctuation, S symbol, C the rest."""
    if _BY_ITSELF.match(character):
        return "H"
    kind = unicodedata.category(character)[0]
    return "L" if kind == "M" else kind


_HAN = "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af"
_HIRAGANA = "\u3041-\u309f"
_BY_ITSELF = re.compile(f"[{_HAN}{_HIRAGANA}]")


def _is_inside(text: str, at: int) -> bool:
    """Whether this character is part of the word around it: the apostrophe of don't, the point of 3.5."""
    around = text[at - 1 : at] + text[at + 1 : at + 2]
    kinds = {_kind(character) for character in around}
    return len(around) == 2 and (
        (text[at] in _IN_WORDS and kinds == {"L"}) or (text[at] in _IN_NUMBERS and kinds == {"N"})
    )


# --- Sentences --------------------------------------------------------------------------------------------------------

_END = re.compile(
    rf"""
    (?P<mark>[.!?…]+) ["'”’»)\]]* (?=\s|\Z|[{_HAN}{_HIRAGANA}]) \s*
    | [。！？｡．।॥؟۔][。！？｡．।॥؟۔!?…]* [”’」』）】》〉\]"')]* \s*
    | \n \s*
    """,
    re.VERBOSE,
)
_NEVER_LAST = re.compile(
    r"mrs?|ms|dr|prof|st|mt|ft|rev|hon|gen|col|capt|lt|sgt|gov|sen|rep|pres|vs|cf|approx|al", re.IGNORECASE
)
_BEFORE_NUMBERS = re.compile(
    r"nos?|figs?|eqs?|sec|ch|vol|pp|art|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec", re.IGNORECASE
)
_WORD_AT_END = re.compile(r"[^\W_]+\Z")
_NEXT = re.compile(r"""["'“‘«(\[]*(\S?)""")


def _sentence_ends(text: str) -> list[int]:
    """Where sentences end, ascending."""
    cased = not text.islower()  # else a small letter says nothing: so an uncased BERT has it
    ends: list[int] = []
    for found in _END.finditer(text):
        if found["mark"] is None or _is_end(text, ends[-1] if ends else 0, found, cased):
            ends.append(found.end())
    return ends


def _is_end(text: str, start: int, found: re.Match[str], cased: bool) -> bool:
    """Whether . ! ? ends the sentence that begins at `start`."""
    if "\n" in found[0]:
        return True
    following = _NEXT.match(text, found.end())
    next_character = following[1] if following else ""
    if cased and next_character.islower():
        return False
    if found["mark"] != ".":
        return True
    before = _WORD_AT_END.search(text, start, found.start())
    word = before[0] if before else ""
    initial = len(word) == 1 and word.isalpha() and not _BY_ITSELF.match(word)
    item = word.isdigit() and text[start : found.start()].strip() == word
    numbered = bool(_BEFORE_NUMBERS.fullmatch(word)) and next_character.isdigit()
    return not (initial or item or numbered or _NEVER_LAST.fullmatch(word))
