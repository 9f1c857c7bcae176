"""Slopes, tables of relative positions, and the places of tokens on a map."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.laws.specimens import found, one, triangle
from tests.doctor.laws.styles import Plain

torch.manual_seed(0)  # for the modules that are made here

# Tables.


class Window(Plain):
    """A window of positions with a bias for each offset."""

    def __init__(self, *size: int, factor: int, side: bool = False) -> None:
        super().__init__()
        height, width = size
        self.window_size: Any = height if side else size
        self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * width - 1), 4))
        at = torch.cartesian_prod(torch.arange(height), torch.arange(width))
        apart = at[:, None] - at
        self.register_buffer("index", (apart[..., 0] + height - 1) * factor + apart[..., 1] + width - 1)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.table[self.index].permute(2, 0, 1)


class Buckets(Plain):
    """The same bias for distances of one bucket."""

    def __init__(self, sign: int = 1, both: bool = False) -> None:
        super().__init__()
        self.relative_bias = nn.Embedding(16, 4)
        self.sign, self.both = sign, both

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        back = self.sign * (torch.arange(n)[:, None] - torch.arange(n))
        bucket = back.abs().clamp(max=7) + 8 * (back < 0) if self.both else back.clamp(0, 15)
        return super().score(q, k) + self.relative_bias(bucket).permute(2, 0, 1)


class CausalBuckets(Buckets):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return super().fill(scores, triangle(*scores.shape[-2:]))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Window(2, 3, factor=4), "there are 13 different biases for the 15 offsets"),
        (Window(3, 3, factor=1, side=True), "there are 9 different biases for the 25 offsets"),
        (Buckets(sign=1), "all keys after the query have the same bias"),
        (Buckets(sign=-1), "all keys before the query have the same bias"),
    ],
)
def test_entries_that_are_shared(module: nn.Module, words: str) -> None:
    finding = one("distances", module)
    assert (finding.name, finding.severity) == ("relative-bias-shared", "bug")
    assert words in finding.evidence


# ALiBi.

FOUR = (2**-2, 2**-4, 2**-6, 2**-8)
SIX = (*FOUR, 2**-1, 2**-3)


class Biased(Plain):
    """`bias`: of slopes [H, 1, 1] and key less query [Q, K]; it falls to both sides unless said otherwise."""

    def __init__(
        self, slopes: tuple[float, ...] = FOUR, bias: Any = lambda slopes, apart: -slopes * apart.abs()
    ) -> None:
        super().__init__(4 * len(slopes), len(slopes), bias=bias)
        self.register_buffer("slopes", torch.tensor(slopes)[:, None, None])

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(k.shape[2])
        return super().score(q, k) + self.bias(self.slopes, at - at[:, None])


def signed(slopes: Tensor, apart: Tensor) -> Tensor:
    """Later keys are favoured the further they are."""
    return slopes * apart


def by_key(slopes: Tensor, apart: Tensor) -> Tensor:
    """Bloom's: the bias is by key position alone; the softmax does not see the difference."""
    return (slopes * apart[0]).masked_fill(apart > 0, -1e9)


def near_only(slopes: Tensor, apart: Tensor) -> Tensor:
    """A number for the token itself and one for each neighbour: two numbers lie on a line, and mean nothing."""
    return torch.where(apart.abs() > 1, -torch.inf, slopes * apart.abs())


class Decoder(Biased):
    """mask: [B, Q, K], True = may attend: a caller passes one that hides later keys."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else mask[:, None])


@pytest.mark.parametrize(
    ("module", "severity", "words"),
    [
        (Biased(tuple(2 ** (-8 * i / 6) for i in range(1, 7))), "bug", "by 0.3969, 0.1575, 0.0625,"),
        (Biased(tuple(-x for x in FOUR)), "bug", "a negative slope favours distant keys"),
        (Biased((0.1, 0.9, 0.3, 0.4)), "risk", "expected 0.25, 0.0625, 0.01562, 0.003906"),
        (Biased(bias=signed), "bug", "rises with that of later ones, by up to 0.25"),
    ],
)
def test_slopes(module: nn.Module, severity: str, words: str) -> None:
    finding = one("distances", module)
    assert (finding.name, finding.severity) == ("alibi-slopes", severity)
    assert words in finding.evidence


# Maps.


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """x [B, H, N, D] by angles [N, D / 2], in halves."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class OnAMap(nn.Module):
    """x: [B, H * W, M] row by row; grid: (H, W)."""

    def __init__(self, places: Any = lambda at, height, width: (at // width, at % width)) -> None:
        super().__init__()
        self.num_heads, self.places = 2, places
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        return self.attend(x, *grid)

    def attend(self, x: Tensor, height: int, width: int) -> Tensor:
        row, column = self.places(torch.arange(height * width), height, width)
        rates = torch.tensor([1.0, 0.3])
        angles = torch.cat([row[:, None] * rates, column[:, None] * rates], -1)
        q, k, v = (z.unflatten(-1, (2, 8)).transpose(1, 2) for z in self.qkv(x).chunk(3, -1))
        weights = (turned(q, angles) @ turned(k, angles).mT / 8**0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


class Stated(OnAMap):
    """Its map is that of the constructor."""

    def __init__(self, grid_size: tuple[int, int] = (3, 7)) -> None:
        super().__init__(lambda at, height, width: (at // width, at % height))
        self.height, self.width = grid_size
        self.register_buffer("table", torch.zeros(21, 1))

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.attend(x + self.table, self.height, self.width)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (OnAMap(lambda at, height, width: (at // height, at % height)), "row = i // 4, column = i % 4"),
        (Stated(), "row = i // 7, column = i % 3"),
    ],
)
def test_the_height_in_the_place_of_the_width(module: nn.Module, words: str) -> None:
    finding = one("distances", module)
    assert (finding.name, finding.severity) == ("grid-transposed", "bug")
    assert words in finding.evidence


@pytest.mark.parametrize(
    "module",
    [
        *(Window(2, 3, factor=5), Window(3, 3, factor=5, side=True), Buckets(both=True), CausalBuckets()),
        *(Biased(), Biased(SIX, by_key), Biased(bias=near_only), Decoder(bias=signed), Plain()),
        *(OnAMap(), OnAMap(lambda at, height, width: (at, at))),  # by rows and columns; in one row
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("distances", module) == []
