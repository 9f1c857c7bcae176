"""Exact match and F1 of answers, with SQuAD's normalisation; for Chinese and Japanese by character.

Rajpurkar et al. 2016, arXiv:1606.05250, and its evaluate-v1.1.py. By character it follows MLQA's evaluation script
(Lewis et al. 2020, arXiv:1910.07475): punctuation of any script is removed, and each character of such a script is a
word.
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Sequence

# CJK punctuation, Hiragana, Katakana, Han, fullwidth forms.
_BY_CHARACTER = re.compile("[\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff00-\uffef\U00020000-\U0003ffff]")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = frozenset(string.punctuation)


def is_by_character(context: str) -> bool:
    """Return whether a text is in a script without spaces between words: Han, Hiragana or Katakana."""
    return _BY_CHARACTER.search(context) is not None


def normalised(text: str, *, by_character: bool = False) -> list[str]:
    """Return the words of an answer as they are compared: in lower case, without punctuation and articles."""
    text = text.lower()
    if by_character:
        text = "".join(each for each in text if not unicodedata.category(each).startswith("P"))
        text = _BY_CHARACTER.sub(lambda found: f" {found[0]} ", text)
    text = "".join(each for each in text if each not in _PUNCTUATION)
    return _ARTICLES.sub(" ", text).split()


def exact_match(answer: str, true: Sequence[str], *, by_character: bool = False) -> float:
    """Return 1 if the answer is one of the true answers, else 0. "" (no answer) is right if there are none."""
    said = normalised(answer, by_character=by_character)
    return float(any(said == normalised(each, by_character=by_character) for each in true or [""]))


def f1(answer: str, true: Sequence[str], *, by_character: bool = False) -> float:
    """Compute F1 over words (the harmonic mean of precision and recall), with the true answer for which it is highest.

    If the model gives no answer or the question has none, F1 is 1 if both are so, else 0.
    """
    said = normalised(answer, by_character=by_character)
    return max(_f1(said, normalised(each, by_character=by_character)) for each in true or [""])


def _f1(said: Sequence[str], true: Sequence[str]) -> float:
    if not said or not true:
        return float(said == true)
    common = (Counter(said) & Counter(true)).total()
    return 2 * common / (len(said) + len(true))
