"""Windows of a map that is shifted around its borders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from headwise.doctor.calling.interface import discover
from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


def cut(x: Tensor, window: int) -> Tensor:
    """[B, H, W, M] as [B * windows, tokens, M]."""
    b, h, w, m = x.shape
    parts = x.view(b, h // window, window, w // window, window, m)
    return parts.transpose(2, 3).reshape(-1, window * window, m)


class Shifted(Attention):
    """Takes a map [B, H, W, M]. A mask separates what the shift brings together."""

    def __init__(self, shift_size: int = 1) -> None:
        super().__init__()
        self.window_size, self.shift_size = 3, shift_size

    def forward(self, x: Tensor) -> Tensor:
        (b, h, w, m), window = x.shape, self.window_size
        y = self.shifted(x, (0, 0, 0, -w % window, 0, -h % window))
        height, width = y.shape[1:3]
        numbers = self.regions(height)[:, None] * 3 + self.regions(width)
        numbers = cut(numbers[None, ..., None], window)[..., 0]
        allowed = (numbers[:, :, None] == numbers[:, None]).repeat(b, 1, 1)[:, None]
        y = cut(y, window)
        out = self.attend(y, y, allowed)
        out = out.view(b, height // window, width // window, window, window, m).transpose(2, 3)
        return self.unshifted(out.reshape(b, height, width, m), h, w)

    def regions(self, n: int) -> Tensor:
        at = torch.arange(n)
        return (at >= n - self.window_size).long() + (at >= n - self.shift_size).long() * bool(self.shift_size)

    def shifted(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        return functional.pad(x, padding).roll((-self.shift_size, -self.shift_size), (1, 2))

    def unshifted(self, y: Tensor, h: int, w: int) -> Tensor:
        return y.roll((self.shift_size, self.shift_size), (1, 2))[:, :h, :w]


class NoRegions(Shifted):
    def regions(self, n: int) -> Tensor:
        return torch.zeros(n, dtype=torch.int64)


class PadsTooLate(Shifted):
    def shifted(self, x: Tensor, padding: tuple[int, ...]) -> Tensor:
        return functional.pad(x.roll((-self.shift_size, -self.shift_size), (1, 2)), padding)

    def unshifted(self, y: Tensor, h: int, w: int) -> Tensor:
        return y[:, :h, :w].roll((self.shift_size, self.shift_size), (1, 2))


class ChannelsFirst(Shifted):
    """Takes a map [B, M, H, W]."""

    def forward(self, x: Tensor) -> Any:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def test_how_a_map_is_passed() -> None:
    interface = discover(seeded(Shifted))
    assert (interface.way.layout, interface.length, interface.width) == ("BHWM", 36, 16)
    assert interface.run(interface.inputs()).output.shape == (interface.batch, 36, 16)
    assert discover(seeded(ChannelsFirst)).way.layout == "BMHW"  # it pads a single row


def test_opposite_borders() -> None:
    finding = one("shift_mask", seeded(NoRegions))
    assert (finding.name, finding.severity, finding.numbers["side"]) == ("shift-mask", "bug", 6)
    # Rows 5, 0 and 1 share a window: 2 * 2 pairs of them, times 6 * 6 columns of which 3 * 6 share one; columns alike.
    assert finding.numbers["pairs"] == 2 * (4 * 18) - 4 * 4 + 0
    assert found("shift_mask", seeded(Shifted)) == []
    assert found("shift_mask", seeded(ChannelsFirst)) == []


def test_padding_after_the_shift() -> None:
    finding = one("shift_mask", seeded(PadsTooLate))
    assert (finding.name, finding.numbers["side"]) == ("shift-mask", 5)


def test_where_nothing_is_shifted() -> None:
    for module in (seeded(Shifted, 0), seeded(Attention)):
        with pytest.raises(NotChecked):
            found("shift_mask", module)


class InARow(Shifted):
    """The 6 x 6 tokens of a map in one row [B, 36, M], as in Swin's blocks; the mask separates what is shifted."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, m = x.shape
        return super().forward(x.view(b, 6, 6, m)).reshape(b, n, m)


class InARowNoRegions(InARow):
    regions = NoRegions.regions


def test_tokens_of_a_map_in_a_row() -> None:
    finding = one("shift_mask", seeded(InARowNoRegions))
    assert (finding.name, finding.severity, finding.numbers["side"]) == ("shift-mask", "bug", 6)
    assert found("shift_mask", seeded(InARow)) == []
