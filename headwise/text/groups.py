"""Groups of tokens: words and sentences. Attention between words is easier to read than between pieces of words.

Every token is in exactly one group. A special token such as [CLS] is a group by itself.

**Words** are separated by white space, and also where the tokenizer splits between letters, digits, punctuation and
symbols: BERT has don ' t, GPT-2 has don 't, and sentencepiece, which splits only at spaces, has don't; but in each of
them "dog." is two words. Consecutive letters are one word, and so are consecutive digits, however the tokenizer splits
them: 1990 in four tokens is one number. A Chinese character or a hiragana is a word, unless one token holds several.
Tokens that share a character are in one word. A space belongs to the following word; newlines, tabs and spaces that
are separate tokens are separate groups. Other languages without spaces between words (Thai) are not split.

**Sentences** end at newlines, at 。！？ and at . ! ? … followed by white space, after closing quotes and brackets. They
do not end before a lower-case letter (if the text has capitals), nor at the point after an initial (J. Smith), an
abbreviation (Dr., No. 5) or the number of a list item ("1. Open"). A special token other than a mask ends a sentence,
so sentences never cross a [SEP]. The rules are simple on purpose: a title that is not in the list below ends a
sentence. A word is never split.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from headwise.errors import ArgumentError
from headwise.text.labels import BY_ITSELF, HAN, HIRAGANA, characters


@dataclass(frozen=True)
class Groups:
    """A division of all tokens into groups: words, sentences, or any other.

    >>> words = tokens.words()
    >>> words.labels, words.spans
    (('[CLS]', 'unrelatably', 'tired', '[SEP]'), ((0,), (1, 2, 3, 4), (5,), (6,)))

    Raises:
        ArgumentError: the number of labels differs from the number of groups, or a token is in no group or in several.
    """

    labels: tuple[str, ...]
    spans: tuple[tuple[int, ...], ...]  # the tokens of each group, as ascending indices; a [MASK] may split a sentence
    level: str = "groups"  # what the groups are: "words", "sentences"

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.spans):
            raise ArgumentError(
                f"groups: expected {len(self.spans)} labels, one per group. Received: {len(self.labels)} labels"
            )
        tokens = sorted(token for span in self.spans for token in span)
        if tokens != list(range(len(tokens))):
            wrong = next((i for i, token in enumerate(tokens) if token != i), 0)
            raise ArgumentError(
                f"groups: expected every token 0 … {len(tokens) - 1} in exactly one group. Received: token {wrong} in "
                f"{tokens.count(wrong)} groups"
            )

    def __len__(self) -> int:
        return len(self.spans)

    @functools.cached_property
    def index(self) -> tuple[int, ...]:
        """The index of each token's group, in the order of the tokens."""
        group = {token: i for i, span in enumerate(self.spans) for token in span}
        return tuple(group[token] for token in range(len(group)))

    def tokens_of(self, group: int) -> tuple[int, ...]:
        """Return the indices of the tokens of a group. Raises ArgumentError for a group out of range."""
        if not 0 <= group < len(self.spans):
            raise ArgumentError(
                f"groups: expected one of the {self.level} 0 … {len(self.spans) - 1}. Received: group={group}"
            )
        return self.spans[group]

    def group_of(self, token: int) -> int:
        """Return the index of the group of a token. Raises ArgumentError for a token out of range."""
        if not 0 <= token < len(self.index):
            raise ArgumentError(
                f"groups: expected one of the tokens 0 … {len(self.index) - 1}. Received: token={token}"
            )
        return self.index[token]


# --- Words ------------------------------------------------------------------------------------------------------------

_IN_WORDS = "'’._·"  # joins letters: don't, U.S
_IN_NUMBERS = ".,_"


def number_words(
    text: str,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    word_ids: Sequence[int | None] = (),
) -> list[int]:
    """Return for each token the index of its word, from 0. `word_ids`: the words of the tokenizer, () if unknown."""
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
    """Return whether a token begins a word.

    `before`, `here`: the offsets of the token before and of this token. `same`: whether the tokenizer puts both in one
    word; None = unknown.
    """
    (_, end), (start, stop) = before, here
    if start == stop or (text[start].isspace() and not end > start):  # a space, or an empty token
        return True
    if before[0] == end:  # the previous token is a space without its own offset
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
        return unicodedata.category(text[first[0]]) in ("Ps", "Pi")  # an opening bracket or quote
    if a in "LN" and b in "LN":
        return same is None
    return same is None or not (_is_inside(text, last[0]) or _is_inside(text, first[0]))


def _kind(character: str) -> str:
    """Classify a character. H: a word by itself, L: letter, N: number, P: punctuation, S: symbol, C: any other."""
    if BY_ITSELF.match(character):
        return "H"
    kind = unicodedata.category(character)[0]
    return "L" if kind == "M" else kind


def _is_inside(text: str, at: int) -> bool:
    """Return whether the character at `at` is inside a word: the apostrophe of don't, the point of 3.5."""
    around = text[at - 1 : at] + text[at + 1 : at + 2]
    kinds = {_kind(character) for character in around}
    return len(around) == 2 and (
        (text[at] in _IN_WORDS and kinds == {"L"}) or (text[at] in _IN_NUMBERS and kinds == {"N"})
    )


# --- Sentences --------------------------------------------------------------------------------------------------------

_END = re.compile(
    rf"""
    (?P<mark>[.!?…]+) ["'”’»)\]]* (?=\s|\Z|[{HAN}{HIRAGANA}]) \s*
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


def sentence_ends(text: str) -> list[int]:
    """Find where sentences end: for each sentence the index after its last character, ascending."""
    cased = not text.islower()  # in uncased text, a lower-case letter says nothing
    ends: list[int] = []
    for found in _END.finditer(text):
        if found["mark"] is None or _is_end(text, ends[-1] if ends else 0, found, cased):
            ends.append(found.end())
    return ends


def _is_end(text: str, start: int, found: re.Match[str], cased: bool) -> bool:
    """Return whether the match `found` (a mark . ! ? or a newline) ends the sentence that begins at `start`.

    `cased`: whether the text has capitals.
    """
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
    initial = len(word) == 1 and word.isalpha() and not BY_ITSELF.match(word)
    item = word.isdigit() and text[start : found.start()].strip() == word
    numbered = bool(_BEFORE_NUMBERS.fullmatch(word)) and next_character.isdigit()
    return not (initial or item or numbered or _NEVER_LAST.fullmatch(word))
