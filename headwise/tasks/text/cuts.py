"""Messages about texts that are longer than a model reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headwise.language import Sentence


def limit(most: int | None, *, part: str = "the rest") -> Sentence:
    """Return the end of a column's description: how many tokens of a text are read (`most`); "" without a limit."""
    told = Sentence("; at most {most} tokens are read, {part} is cut")
    return Sentence("") if most is None else told.format(most=most, part=part)


def cut(lengths: Iterable[int], most: int | None, *, what: str = "", part: str = "the rest") -> dict[int, str]:
    """Return a dict: index of each text with more than `most` tokens -> why it is read only in part. None: no limit.

    Args:
        what: the part of an input that is too long: "a question of "; "" = the whole input.
        part: the part that is not read.
    """
    why = Sentence("{what}more than {most} tokens, {part} was cut").format(what=what, most=most, part=part)
    return {place: why for place, length in enumerate(lengths) if most is not None and length > most}


def cut_longer(texts: Sequence[list[int]], room: int) -> list[list[int]]:
    """Cut one or two texts at their ends to `room` tokens in all; of two texts the longer one is cut first."""
    room = max(room, 0)
    if len(texts) == 1:
        return [texts[0][:room]]
    first, second = texts
    kept = min(len(first), max(room - len(second), (room + 1) // 2))
    return [first[:kept], second[: room - kept]]
