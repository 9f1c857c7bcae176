"""Reads labels: a label is the same text, whatever it is read from. A number is "1", also if it is written 1.0."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence

from headwise.language import Sentence, join

_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]*)?([eE][+-]?[0-9]+)?")  # 01 is no number, but a name
_WHOLE = re.compile(r"\+?(-?(0|[1-9][0-9]*))(\.0*)?")


def write_number(number: float) -> str:
    """Write a number as text; a whole number without ".0"."""
    return str(int(number)) if number.is_integer() and abs(number) < 2**53 else str(number)


def read_number(text: str) -> str:
    """Return a whole number in text without ".0"; another text unchanged: 1.1 and 1.10 may be two versions."""
    found = _WHOLE.fullmatch(text.strip())
    return found[1] if found else text


def read_labels(texts: Sequence[str]) -> list[str]:
    """Read a column of labels: if all of them are numbers, "1.0" is "1". Otherwise they stay as they are."""
    are_numbers = all(_NUMBER.fullmatch(text.strip()) for text in texts if text.strip())
    return [read_number(text) for text in texts] if are_numbers else list(texts)


def fold_label(label: str) -> str:
    """Return what nearly equal labels have in common: "neg" for "NEG" and "neg "."""
    folded = " ".join(unicodedata.normalize("NFKC", label).casefold().split())
    folded = re.sub("^0+(?=[0-9])", "", folded)
    return write_number(float(folded)) if _NUMBER.fullmatch(folded) else folded


def note_alike(labels: Iterable[str]) -> tuple[str, ...]:
    """Make a sentence if labels differ only in case, blanks, the width of letters, or the form of a number."""
    alike: dict[str, list[str]] = {}
    for label in dict.fromkeys(labels):
        alike.setdefault(fold_label(label), []).append(repr(label))
    same = [join(some, " and ") for some in alike.values() if len(some) > 1]
    told = Sentence("{labels} count as different labels: write them alike if they mean the same")
    return (told.format(labels=join(same)),) if same else ()
