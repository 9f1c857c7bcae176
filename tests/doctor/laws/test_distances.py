"""Relative positions that share an entry of their table."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import distances
from headwise.doctor.patient import NotApplicable
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain


class Window(Attention):
    """A window of 2 by 3 positions with a bias for each offset."""

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.window_size = (2, 3)
        self.relative_bias_table = nn.Parameter(torch.randn(3 * 5, 4))
        at = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(3), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None]
        self.register_buffer("relative_index", (apart[0] + 1) * factor + apart[1] + 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) + self.relative_bias_table[self.relative_index].permute(2, 0, 1)


class Buckets(Attention):
    """The same bias for distances of one bucket."""

    def __init__(self, sign: int = 1, both: bool = True) -> None:
        super().__init__()
        self.relative_bias = nn.Embedding(16, 4)
        self.sign, self.both = sign, both

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        back = self.sign * (torch.arange(n)[:, None] - torch.arange(n))
        bucket = back.abs().clamp(max=7) + 8 * (back < 0) if self.both else back.clamp(0, 15)
        return super().score(q, k) + self.relative_bias(bucket).permute(2, 0, 1)


class CausalBuckets(Buckets):
    """Sees no future."""

    def forward(self, x: Tensor) -> Tensor:
        return Causal.forward(self, x)


def test_an_index_with_wrong_strides() -> None:
    finding = one("distances", seeded(Window, 4))
    assert (finding.name, finding.severity) == ("relative-bias-shared", "bug")
    assert "there are 13 different biases for the 15 offsets" in finding.evidence
    assert found("distances", seeded(Window, 5)) == []


@pytest.mark.parametrize(("module", "sign", "word"), [(Buckets, 1, "after"), (Buckets, -1, "before")])
def test_one_bucket_for_a_side(module: type[nn.Module], sign: int, word: str) -> None:
    finding = one("distances", seeded(module, sign, False))
    assert (finding.name, finding.severity) == ("relative-bias-shared", "bug")
    assert f"all keys {word} the query have the same bias" in finding.evidence


@pytest.mark.parametrize(("module", "both"), [(Buckets, True), (CausalBuckets, True), (CausalBuckets, False)])
def test_buckets_of_what_is_seen(module: type[nn.Module], both: bool) -> None:
    assert found("distances", seeded(module, 1, both)) == []


class Square(Window):
    """A window of 3 by 3 positions, of which only the side is kept."""

    def __init__(self, factor: int) -> None:
        super().__init__(factor)
        self.window_size = 3
        self.relative_bias_table = nn.Parameter(torch.randn(25, 4))
        at = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None]
        self.register_buffer("relative_index", (apart[0] + 2) * factor + apart[1] + 2)


def test_a_square_window() -> None:
    assert one("distances", seeded(Square, 1)).numbers == {"entries": 9, "offsets": 25}
    assert found("distances", seeded(Square, 5)) == []


# ALiBi.

FOUR = [2**-2, 2**-4, 2**-6, 2**-8]
SIX = [*FOUR, 2**-1, 2**-3]


class Biased(Plain):
    """Symmetric: the bias falls to both sides."""

    def __init__(self, slopes: list[float]) -> None:
        super().__init__(4 * len(slopes), len(slopes))
        self.register_buffer("slopes", torch.tensor(slopes))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(k.shape[2])
        return q @ k.mT / math.sqrt(q.shape[-1]) + self.bias(at)

    def bias(self, at: Tensor) -> Tensor:
        return -self.slopes[:, None, None] * (at - at[:, None]).abs()

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-1)


class CausalEinsum(Einsum):
    """Press et al.: causal, the bias falls into the past."""

    def __init__(self, slopes: list[float]) -> None:
        super().__init__(4 * len(slopes), len(slopes))
        self.register_buffer("slopes", torch.tensor(slopes))

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        distance = torch.arange(n) - torch.arange(n)[:, None]
        biased = scores / 2 + self.slopes[:, None, None] * distance
        return biased.masked_fill(distance > 0, float("-inf"))


class ByKeyPosition(CausalEinsum):
    """Bloom's: the bias is by key position alone; the softmax does not see the difference."""

    def scaled(self, scores: Tensor) -> Tensor:
        n = scores.shape[-1]
        later = torch.ones(n, n, dtype=torch.bool).triu(1)
        return (scores / 2 + self.slopes[:, None, None] * torch.arange(n)).masked_fill(later, -1e9)


@pytest.mark.parametrize("style", [Biased, CausalEinsum, ByKeyPosition])
@pytest.mark.parametrize("slopes", [FOUR, SIX], ids=["four heads", "six heads"])
def test_a_healthy_one(style: type[nn.Module], slopes: list[float]) -> None:
    assert found("distances", seeded(style, slopes)) == []


PLAIN_SIX = [2 ** (-8 * (i + 1) / 6) for i in range(6)]


@pytest.mark.parametrize("style", [Biased, CausalEinsum])
def test_the_formula_of_powers_of_two_for_six_heads(style: type[nn.Module]) -> None:
    finding = one("distances", seeded(style, PLAIN_SIX))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "by 0.3969, 0.1575, 0.0625," in finding.evidence
    assert "in the 6 heads; expected 0.25, 0.0625, 0.01562, 0.003906, 0.5, 0.125" in finding.evidence


def test_a_bias_that_rises_with_the_distance() -> None:
    finding = one("distances", seeded(Biased, [-x for x in FOUR]))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "a negative slope favours distant keys" in finding.evidence


def test_slopes_of_another_family_are_a_risk() -> None:
    assert one("distances", seeded(Biased, [0.1, 0.9, 0.3, 0.4])).severity == "risk"


def test_where_there_is_no_such_bias() -> None:
    with pytest.raises(NotApplicable, match="no bias that falls"):
        found("distances", seeded(Plain))


class NearOnly(Biased):
    """A learned number for the token itself and one for each neighbour: two numbers lie on a line, and mean nothing."""

    def bias(self, at: Tensor) -> Tensor:
        apart = (at - at[:, None]).abs()
        return torch.where(apart > 1, -torch.inf, self.slopes[:, None, None] * apart)


def test_few_distances_are_no_slope() -> None:
    with pytest.raises(NotApplicable):
        found("distances", seeded(NearOnly, FOUR))


class Signed(Biased):
    """Every key is seen, and later ones are favoured the further they are."""

    def bias(self, at: Tensor) -> Tensor:
        return self.slopes[:, None, None] * (at - at[:, None])


class SignedAndMasked(Signed):
    """mask: [B, Q, K], True = may attend: a decoder passes one that hides later keys."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if mask is None else mask[:, None])

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


def test_later_keys_that_are_favoured_by_their_distance() -> None:
    finding = one("distances", seeded(Signed, FOUR))
    assert (finding.name, finding.severity) == ("alibi-slopes", "bug")
    assert "rises with that of later ones, by up to 0.25" in finding.evidence
    assert found("distances", seeded(SignedAndMasked, FOUR)) == []


# By hand.


def test_slopes_of_a_matrix() -> None:
    at = torch.arange(5.0, dtype=torch.float64)
    bias = -0.5 * (at[:, None] - at).abs().expand(1, 1, 5, 5)
    assert distances.slopes(bias).tolist() == [0.5]
    assert distances.slopes(bias**2) is None


def test_one_sided_and_shared() -> None:
    at = torch.arange(5)
    apart = at[:, None] - at
    assert distances.one_sided(apart.clamp(min=0).double()) == "after"
    assert distances.one_sided(apart.clamp(max=0).double()) == "before"
    assert distances.one_sided(apart.double()) == ""
    assert distances.shared(apart.double()[None], apart) == 9
    assert distances.shared(apart.abs().double()[None], apart) == 5
    assert distances.shared(at[:, None].expand(1, 5, 5).double(), apart) == 9  # no function of the offset
