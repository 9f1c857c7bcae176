"""Windows over a text that is longer than a model can read. Each shares its end with the beginning of the next."""

from __future__ import annotations


def windows(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """From where to where each window reaches, in tokens; together they hold all, and none is longer than `room`.

    Whatever is at most `overlap` + 1 tokens long lies whole in at least one of them: a window begins at most
    `room` - `overlap` after the one before, so the last that begins at or before the first token of such a piece ends
    behind its last.

        windows(10, room=6, overlap=3) == [(0, 6), (3, 9), (4, 10)]

    Args:
        length: of the text, in tokens.
        room: how many a window has at most.
        overlap: how many two windows in a row share at least; less than `room`.
    """
    if not 0 <= overlap < room:
        raise ValueError(f"expected 0 <= overlap < room. Received: overlap={overlap}, room={room}")
    if length <= room:
        return [(0, length)]
    starts = [*range(0, length - room, room - overlap), length - room]
    return [(start, start + room) for start in starts]
