"""Gives out a text in pieces while it is generated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

UNFINISHED = "\ufffd"  # stands for bytes that are not a character, such as the first bytes of one


def pieces(certain: Iterable[Sequence[int]], text: Callable[[Sequence[int]], str]) -> Iterator[str]:
    """Yield each new part of a text while it grows. Joined, the parts are the whole text; no part is empty.

    Args:
        certain: yields, after each step, all ids that are certain so far; at last all ids.
        text: a function from ids to text. Additional ids may only change the end of the text, where bytes are not a
            whole character yet.
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
    if rest := text(ids)[given:]:  # bytes that never became a character
        yield rest
