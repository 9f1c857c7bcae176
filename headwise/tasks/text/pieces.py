"""A text in pieces, while it is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

UNFINISHED = "\ufffd"  # what stands for bytes that are no character, such as the first ones of a character


def pieces(certain: Iterable[Sequence[int]], text: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """What is new of a text, each time that something is. Together the pieces are the whole; none is empty.

    Args:
        certain: the ids that are certain, of which there come to be more; the last time all.
        text: of ids. What comes after them may change bytes at the end that are no character yet, and nothing else.
    """
    ids: Sequence[int] = ()
    given = 0
    for more in certain:
        if len(more) > len(ids):
            ids = more
            known = text(ids).rstrip(UNFINISHED)
            if len(known) > given:
                yield known[given:]
                given = len(known)
    if rest := text(ids)[given:]:  # bytes that remained no character
        yield rest
