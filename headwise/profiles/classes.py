"""Classifies tokens: special tokens, punctuation, numbers, function words, other words, and the rest of a word."""

from __future__ import annotations

import re

from headwise.text import Tokens
from headwise.text.labels import bare

#: The names of the classes; the code of a class is its index here. Each token gets the first class that fits.
CLASSES = ("start", "separator", "punctuation", "number", "word piece", "function word", "word")
START, SEPARATOR, PUNCTUATION, NUMBER, PIECE, FUNCTION, WORD = range(len(CLASSES))

_WORDS = """
a an the this that these those i you he she it we they me him her us them my your his its our their who which
what and or but if because as than so not no nor of to in on at by for with from into about over under between
is are was were be been being am do does did have has had will would can could may might must shall should
there when where while
"""
#: A small closed list of English words with a grammatical, not a lexical meaning. Other languages have no such list.
FUNCTION_WORDS = frozenset(_WORDS.split())
_NUMBER = re.compile(r"[\d.,:%+-]*\d[\d.,:%+-]*")


def classify_tokens(tokens: Tokens) -> list[int]:
    """Return the code of each token's class: an index in `CLASSES`.

    A special token is "start" at the first position, as [CLS] is, and "separator" elsewhere. A token is a "word piece"
    if it continues the word of the previous token.
    """
    words = tokens.word_ids or (None,) * len(tokens.ids)
    found, before = [], None
    for place, (label, special, word) in enumerate(zip(tokens.labels, tokens.special, words, strict=True)):
        written = bare(label).lower()
        if special:
            found.append(START if place == 0 else SEPARATOR)
        elif not any(letter.isalnum() for letter in written):
            found.append(PUNCTUATION)
        elif _NUMBER.fullmatch(written):
            found.append(NUMBER)
        elif label.startswith("##") or (word is not None and word == before):
            found.append(PIECE)
        else:
            found.append(FUNCTION if written in FUNCTION_WORDS else WORD)
        before = None if special else word
    return found
