"""Tokens of a sound: frames (time steps) of equal length, one after another."""

from __future__ import annotations

from dataclasses import dataclass, replace

from headwise.errors import ArgumentError
from headwise.text.tokens import Tokens


@dataclass(frozen=True)
class Frames:
    """`count` frames of `seconds` each, from the beginning of the sound. A frame's name is the time when it begins.

    >>> Frames(1500, 0.02).tokens().labels[:3]  # the encoder of Whisper: 30 seconds, 20 ms a frame
    ('0.00 s', '0.02 s', '0.04 s')

    Raises:
        ArgumentError: fewer than one frame, or a frame of 0 seconds or less.
    """

    count: int
    seconds: float

    def __post_init__(self) -> None:
        if self.count < 1 or not self.seconds > 0.0:
            raise ArgumentError(
                f"frames: expected at least 1 frame of more than 0 seconds. Received: {self.count} × {self.seconds} s"
            )

    def __len__(self) -> int:
        return self.count

    def tokens(self) -> Tokens:
        """Return the frames as `Tokens` without text."""
        named = Tokens.of_names([f"{i * self.seconds:.2f} s" for i in range(self.count)])
        return replace(named, word_ids=(None,) * self.count, seconds=self.seconds)
