"""The windows of series: all ranges of `length` consecutive steps. They are copied into a tensor only for a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class SeriesWindows(Sequence["SeriesWindow"]):
    """All windows of some series, or only the last window of each series. A window has all channels (columns).

    Args:
        series: float32 [C, T] each, all with the same C; T is at least `length`.
        length: steps in a window.
        last: whether to use only the last window of each series.
    """

    def __init__(self, series: Sequence[Tensor], length: int, *, last: bool = False) -> None:
        self.length = length
        self.values_CT = torch.cat(list(series), dim=1)
        starts, which, first = list[Tensor](), list[Tensor](), 0
        for number, values_CT in enumerate(series):
            count = values_CT.shape[1] - length + 1
            inside = torch.arange(count - 1 if last else 0, count)
            starts.append(first + inside)
            which.append(torch.full_like(inside, number))
            first += values_CT.shape[1]
        self.starts, self.series = torch.cat(starts), torch.cat(which)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, place: int) -> SeriesWindow:  # type: ignore[override]  # slices are not needed
        if not 0 <= place < len(self):
            raise IndexError(place)
        return SeriesWindow(self, place)

    def gather(self, places: Sequence[int]) -> Tensor:
        """Return the windows with these numbers as one tensor, [n, C, length]."""
        steps = self.starts[list(places), None] + torch.arange(self.length)
        return self.values_CT[:, steps].transpose(0, 1)


class SeriesWindow(NamedTuple):
    """A window, named by its number in the list of all windows."""

    of: SeriesWindows
    place: int
