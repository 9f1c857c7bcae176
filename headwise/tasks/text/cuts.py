"""What is said of texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Iterable


def limit(most: int | None, *, part: str = "the rest") -> str:
    """The end of a column's description: how much of a text is read."""
    return "" if most is None else f"; at most {most} tokens are read, {part} is cut"


def cut(lengths: Iterable[int], most: int | None, *, what: str = "", part: str = "the rest") -> dict[int, str]:
    """The texts with more than `most` tokens: their places -> why they are read only in part. None = no limit.

    Args:
        what: of an input has so many tokens: "a question of "; "" = all of it.
        part: what is not read.
    """
    said = f"{what}more than {most} tokens, {part} was cut"
    return {place: said for place, length in enumerate(lengths) if most is not None and length > most}
