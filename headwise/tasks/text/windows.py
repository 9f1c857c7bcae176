"""Windows over a text that is longer than a model can read. The end of each window is also in the next window."""

from __future__ import annotations


def windows(length: int, room: int, overlap: int) -> list[tuple[int, int]]:
    """Divide a text into windows of at most `room` tokens that cover it. Returns (begin, end) of each, in tokens.

    A piece of at most `overlap` + 1 tokens is completely inside at least one window: a window begins at most `room` -
    `overlap` after the one before, so the last window that begins at or before the first token of such a piece ends
    after its last token.

        windows(10, room=6, overlap=3) == [(0, 6), (3, 9), (4, 10)]

    Args:
        length: the length of the text, in tokens.
        room: the largest number of tokens in a window.
        overlap: the smallest number of tokens that consecutive windows share; less than `room`.
    """
    if not 0 <= overlap < room:
        raise ValueError(f"expected 0 <= overlap < room. Received: overlap={overlap}, room={room}")
    if length <= room:
        return [(0, length)]
    starts = [*range(0, length - room, room - overlap), length - room]
    return [(start, start + room) for start in starts]
