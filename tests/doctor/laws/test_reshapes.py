"""Views and reshapes in the place of a transpose, and those that are right."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.reshapes import changed, place, undoes
from headwise.doctor.reading.events import regroups
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain, SharedByHeads, assert_at

LAW = "reshapes"


class Hops(nn.Module):
    """Structured self-attention (Lin et al. 2017): each of 4 hops pools the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(16, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.second(self.first(x).tanh()).softmax(1)  # [B, N, 4]
        return self.turned(weights) @ x

    def turned(self, weights: Tensor) -> Tensor:
        return weights.transpose(1, 2)


class HopsViewed(Hops):
    def turned(self, weights: Tensor) -> Tensor:
        return weights.view(len(weights), 4, -1)  # here


class Window(Plain):
    """Five tokens, with a learned bias for each head and distance."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 4))
        at = torch.arange(5)
        self.register_buffer("index", at[:, None] - at + 4)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.bias(self.table[self.index.flatten()])

    def bias(self, gathered: Tensor) -> Tensor:
        return gathered.view(5, 5, 4).permute(2, 0, 1)


class WindowViewed(Window):
    def bias(self, gathered: Tensor) -> Tensor:
        return gathered.view(4, 5, 5)  # here


class Columns(nn.Module):
    """Attention along the columns of a map [B, C, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).permute(0, 3, 2, 1).reshape(b * w, h, 3 * c).chunk(3, -1)
        return self.out(self.back((q @ k.mT / c**0.5).softmax(-1) @ v, (b, c, h, w)))

    def back(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        b, c, h, w = shape
        return x.reshape(b, w, h, c).permute(0, 3, 2, 1)


class ColumnsAsRows(Columns):
    def back(self, x: Tensor, shape: tuple[int, ...]) -> Tensor:
        b, c, h, w = shape
        return x.reshape(b, h, w, c).permute(0, 3, 1, 2)  # here


class Reduced(Plain):
    """Keys of the tokens two by two, as pyramids have them: [B, N, C] to [B, N / 2, 2 C]."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.v = nn.Linear(32, 16), nn.Linear(32, 16)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        pairs = memory[:, : memory.shape[1] // 2 * 2].reshape(len(x), -1, 32)
        return super().attend(x, pairs, allowed)


class Shifted(Plain):
    """A score of each query with each distance (Transformer-XL)."""

    def __init__(self) -> None:
        super().__init__()
        self.distances = nn.Parameter(torch.randn(64, 4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[-2]
        return super().score(q, k) + self.shifted(q @ self.distances[: 2 * n - 1].T)

    def shifted(self, scores: Tensor) -> Tensor:
        n = scores.shape[-2]
        padded = functional.pad(scores, (1, 0))  # [B, H, N, 2 N]
        return padded.reshape(*padded.shape[:2], 2 * n, n)[:, :, 1:].reshape(scores.shape)[..., :n]


class ShiftedWithoutPadding(Shifted):
    """As XLNet does."""

    def shifted(self, scores: Tensor) -> Tensor:
        b, h, n, m = scores.shape
        return scores.reshape(b, h, m, n)[:, :, 1:].reshape(b, h, n, m - 1)[..., :n]


def test_a_view_in_the_place_of_a_transpose() -> None:
    finding = one(LAW, seeded(HopsViewed))
    assert (finding.name, finding.severity) == ("reshape-scrambles", "bug")
    # The second token starts at number 4 of [5, 4]; that is number 4 of the first row of [4, 5].
    assert "[3, 5, 4] to [3, 4, 5]" in finding.evidence
    assert "what was at [0, 1, 0] is at [0, 0, 4]" in finding.evidence
    assert_at(finding, HopsViewed, "# here")


def test_a_gathered_bias_that_is_viewed() -> None:
    finding = one(LAW, seeded(WindowViewed))
    assert "[25, 4] to [4, 5, 5]" in finding.evidence
    assert_at(finding, WindowViewed, "# here")


def test_columns_that_come_back_as_rows() -> None:
    """Nothing shows it in a square map, or in one of one row."""
    finding = one(LAW, seeded(ColumnsAsRows))
    assert "[18, 4, 16] to [3, 4, 6, 16]" in finding.evidence
    assert_at(finding, ColumnsAsRows, "# here")


class ShiftedOfTwice(ShiftedWithoutPadding):
    """Of 2 N distances: the way there splits the rows in two halves, and merges them."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return Plain.score(self, q, k) + self.shifted(q @ self.distances[: 2 * q.shape[-2]].T)


class ShiftedByTwo(ShiftedOfTwice):
    """It drops two rows."""

    def shifted(self, scores: Tensor) -> Tensor:
        b, h, n, m = scores.shape
        return scores.reshape(b, h, m, n)[:, :, 2:].reshape(b, h, n, m - 2)[..., :n]


@pytest.mark.parametrize(
    "kind",
    [
        *(Attention, Plain, Einsum, SharedByHeads, Hops, Window, Columns, Reduced),
        *(Shifted, ShiftedWithoutPadding, ShiftedOfTwice, ShiftedByTwo),
    ],
)
def test_what_splits_and_merges_or_shifts_is_right(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []


@pytest.mark.parametrize(
    ("shape", "into", "expected"),
    [
        ((3, 5, 16), (3, 5, 4, 4), False),
        ((3, 4, 5, 7), (12, 5, 7), False),
        ((3, 6, 16), (3, 3, 32), False),  # two tokens in a row
        ((3, 5, 16), (3, 1, 5, 16), False),
        ((15, 16), (3, 5, 16), False),
        ((), (1, 1), False),
        ((3, 5, 16), (3, 16, 5), True),
        ((3, 5, 16), (3, 4, 5, 4), True),
        ((5, 3, 16), (3, 5, 16), True),
        ((2, 3, 16), (3, 32), True),  # the two directions of a recurrent layer
    ],
)
def test_which_reshapes_regroup(shape: tuple[int, ...], into: tuple[int, ...], expected: bool) -> None:
    assert regroups(shape, into) is expected
    assert regroups(into, shape) is expected


def test_the_way_there_and_back() -> None:
    """Of [4, 7] read as [7, 4], without its first row [6, 4], and read as [4, 6]."""
    assert undoes((3, 2, 4, 7), (3, 2, 7, 4), (3, 2, 6, 4), (3, 2, 4, 6))
    assert not undoes((3, 2, 4, 7), (3, 2, 7, 4), (3, 2, 7, 4), (3, 2, 4, 7))  # nothing was dropped
    assert not undoes((3, 5, 16), (3, 16, 5), (3, 5, 16), (3, 5, 4, 4))
    assert changed((3, 1, 5, 16, 2), (3, 16, 5, 2)) == ([5, 16], [16, 5])


def test_where_a_number_stands() -> None:
    assert place(4, [3, 5, 4]) == [0, 1, 0]
    assert place(4, [3, 4, 5]) == [0, 0, 4]


class Maps(Attention):
    """x: [B, C, H, W]"""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, 16)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.tokens(self.norm(x))
        return x + self.attend(tokens, tokens, None).transpose(1, 2).reshape(x.shape)

    def tokens(self, x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2)


class Reshaped(Maps):
    def tokens(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.reshape(b, h * w, c)


def test_tokens_that_are_taken_apart() -> None:
    assert one(LAW, seeded(Reshaped)).name == "reshape-scrambles"
    assert found(LAW, seeded(Maps)) == []
