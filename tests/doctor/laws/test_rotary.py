"""Rotary positions in every way they are written, and in the ways that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import rotary
from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import found, one, seeded
from tests.doctor.laws.styles import Einsum, Plain, assert_at


def angles(n: int, width: int) -> Tensor:
    """[N, width / 2]"""
    return torch.arange(n)[:, None] * 100.0 ** -(torch.arange(width // 2) * 2 / width)


def half(x: Tensor, angle: Tensor) -> Tensor:
    """[.., N, D]: feature i with i + D / 2."""
    cos, sin = (torch.cat([f, f], dim=-1) for f in (angle.cos(), angle.sin()))
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


def neighbours(x: Tensor, angle: Tensor) -> Tensor:
    out = torch.empty_like(x)
    a, b = x[..., ::2], x[..., 1::2]
    out[..., ::2] = a * angle.cos() - b * angle.sin()
    out[..., 1::2] = a * angle.sin() + b * angle.cos()
    return out


def complex_(x: Tensor, angle: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


class Rotary(Plain):
    """Heads of eight, [B, H, N, D]."""

    def __init__(self) -> None:
        super().__init__(16, 2)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        angle = angles(x.shape[1], 8)
        scores = self.query(q, angle) @ self.key(k, angle).mT / 8**0.5
        return self.out(self.merge(scores.softmax(-1) @ self.value(v, angle)))

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle)

    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return half(k, angle)

    def value(self, v: Tensor, angle: Tensor) -> Tensor:
        return v


class InEinsum(Einsum):
    """Heads of eight, [B, N, H, D]; neighbours."""

    def __init__(self) -> None:
        super().__init__(16, 2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.qkv(x))
        angle = angles(x.shape[1], 8)[:, None]
        scores = torch.einsum("bqhd,bkhd->bhqk", *self.turned(q, k, angle)) / 8**0.5
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))

    def turned(self, q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        return neighbours(q, angle), neighbours(k, angle)


# Wrong.


class MixedPairing(Rotary):
    """Tables for neighbours, pairs of halves."""

    def mixed(self, x: Tensor, angle: Tensor) -> Tensor:
        cos, sin = (f.repeat_interleave(2, dim=-1) for f in (angle.cos(), angle.sin()))
        a, b = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-b, a], dim=-1) * sin

    query = key = mixed


class MixedTheOtherWay(InEinsum):
    """Tables for halves, pairs of neighbours."""

    def turned(self, q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (torch.cat([f, f], dim=-1) for f in (angle.cos(), angle.sin()))

        def turn(x: Tensor) -> Tensor:
            swapped = torch.stack([-x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
            return x * cos + swapped * sin

        return turn(q), turn(k)


class OneOfEach(Rotary):
    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return neighbours(k, angle)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (MixedPairing, "have other lengths at other positions"),
        (MixedTheOtherWay, "have other lengths at other positions"),
        (OneOfEach, "in other pairs (0 with 4, 1 with 5) than keys (0 with 1, 2 with 3)"),
    ],
)
def test_pairs_and_tables_that_do_not_fit(module: type[nn.Module], words: str) -> None:
    finding = one("rotary", seeded(module))
    assert (finding.name, finding.severity) == ("rope-pairing", "bug")
    assert words in finding.evidence
    if module is not OneOfEach:
        assert finding.numbers["off"] > 0.1


class OnlyQueries(Rotary):
    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return k


class OnlyKeys(InEinsum):
    def turned(self, q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        return q, neighbours(k, angle)


class ValuesToo(Rotary):
    def value(self, v: Tensor, angle: Tensor) -> Tensor:
        return half(v, angle)


class Opposite(Rotary):
    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return half(k, -angle)


class OtherAngles(InEinsum):
    def turned(self, q: Tensor, k: Tensor, angle: Tensor) -> tuple[Tensor, Tensor]:
        return neighbours(q, angle), neighbours(k, angle * 1.1)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (OnlyQueries, "only the queries are rotated by their position; the keys are not"),
        (OnlyKeys, "only the keys are rotated by their position; the queries are not"),
        (ValuesToo, "the values are also rotated by their position"),
        (Opposite, "in opposite directions"),
        (OtherAngles, "by different angles"),
    ],
)
def test_queries_and_keys_that_are_not_rotated_alike(module: type[nn.Module], words: str) -> None:
    finding = one("rotary", seeded(module))
    assert (finding.name, finding.severity) == ("rope-asymmetric", "bug")
    assert words in finding.evidence
    assert_at(
        finding,
        InEinsum if issubclass(module, InEinsum) else Rotary,
        'torch.einsum("bqhd,bkhd->bhqk"' if issubclass(module, InEinsum) else "scores = self.query(q, angle)",
    )


class RowsAndColumns(Rotary):
    """An image two wide: half of every head by row, half by column."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        at = torch.arange(q.shape[-2])
        row, column = (p[:, None] * torch.tensor([1.0, 0.1]) for p in (at // 2, at % 2))
        return torch.cat([neighbours(q[..., :4], row), neighbours(q[..., 4:], column)], dim=-1)

    key = query


# Healthy.


class Neighbours(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return neighbours(q, angle)

    key = query


class Complex(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return complex_(q, angle)

    key = query


class Partial(Rotary):
    """The first half of every head only."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return torch.cat([half(q[..., :4], angles(q.shape[-2], 4)), q[..., 4:]], dim=-1)

    key = query


class LastPart(Rotary):
    """The last quarter of every head, by neighbours, as MLA has it."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return torch.cat([q[..., :6], neighbours(q[..., 6:], angles(q.shape[-2], 2))], dim=-1)

    key = query


class ScaledFirst(Rotary):
    """Positions of its own choice (linear scaling), and the scale on the queries."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle / 4)

    key = query


class Decaying(Rotary):
    """xPos: queries grow and keys shrink with the position, so that scores fall with the distance."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle) * 0.97 ** torch.arange(len(angle))[:, None]

    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return half(k, angle) / 0.97 ** torch.arange(len(angle))[:, None]


class WithABias(InEinsum):
    """The bias is added after the product."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(torch.einsum("bnm,om->bno", x, self.qkv.weight) + self.qkv.bias)
        angle = angles(x.shape[1], 8)[:, None]
        scores = torch.einsum("bqhd,bkhd->bhqk", *self.turned(q, k, angle)) / 8**0.5
        return self.proj(torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v).flatten(2))


class SequenceFirst(nn.Module):
    """x: [seq, batch, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = 2
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (2, 8)) for f in (self.q, self.k, self.v))  # [N, B, H, D]
        angle = angles(len(x), 8)[:, None, None]
        weights = (torch.einsum("qbhd,kbhd->bhqk", half(q, angle), half(k, angle)) / 8**0.5).softmax(-1)
        return self.o(torch.einsum("bhqk,kbhd->qbhd", weights, v).flatten(2))


@pytest.mark.parametrize(
    "module",
    [
        Rotary,
        InEinsum,
        Neighbours,
        Complex,
        Partial,
        LastPart,
        ScaledFirst,
        Decaying,
        WithABias,
        SequenceFirst,
        RowsAndColumns,
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("rotary", seeded(module)) == []


class Sinusoids(Plain):
    """Positions that are added to the input."""

    def forward(self, x: Tensor) -> Tensor:
        angle = angles(x.shape[1], x.shape[2])
        x = x + torch.cat([angle.sin(), angle.cos()], -1)
        return self.attend(x, x, None)


class TransformerXL(Plain):
    """Sinusoids of the distances, projected, that queries are multiplied with."""

    def __init__(self) -> None:
        super().__init__(16, 2)
        self.positions = nn.Linear(16, 16, bias=False)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        n = q.shape[2]
        angle = angles(n, 16)
        r = self.split(self.positions(torch.cat([angle.sin(), angle.cos()], -1)[None]))
        apart = (torch.arange(n)[:, None] - torch.arange(n)).abs()
        near = (q @ r.mT).gather(-1, apart.expand(len(q), 2, n, n))
        return (q @ k.mT + near) / 8**0.5


@pytest.mark.parametrize("module", [Plain, Sinusoids, TransformerXL])
def test_no_rope_is_not_judged(module: type[nn.Module]) -> None:
    with pytest.raises(NotChecked):
        found("rotary", seeded(module))


# The wrong axis.


class OverHeads(Rotary):
    """The table runs over the heads, because queries and keys are still [B, N, H, D]."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k = (f(x).view(*x.shape[:2], 2, 8) for f in (self.q, self.k))
        q, k = (half(y, angles(y.shape[-2], 8)).transpose(1, 2) for y in (q, k))
        return self.out(self.merge((q @ k.mT / 8**0.5).softmax(-1) @ self.split(self.v(x))))


def test_a_table_over_the_heads() -> None:
    finding = one("rotary", seeded(OverHeads))
    assert (finding.name, finding.severity) == ("rope-axis", "bug")
    assert "by the number of their head, the same at every position" in finding.evidence


class WithoutMinus(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        cos, sin = (torch.cat([f, f], dim=-1) for f in (angle.cos(), angle.sin()))
        a, b = q.chunk(2, dim=-1)
        return q * cos + torch.cat([b, a], dim=-1) * sin

    key = query


def test_a_missing_sign_is_no_layout() -> None:
    finding = one("rotary", seeded(WithoutMinus))
    assert finding.name == "rope-pairing"
    assert "get the sine with the same sign" in finding.evidence
    assert "cat([-x2, x1])" in finding.fix


class HalvesInPlace(Rotary):
    """The sine meets the feature itself, and not the other one of its pair."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        one, two = q.chunk(2, -1)
        cos, sin = angle.cos().float(), angle.sin().float()
        return torch.cat([one * (cos + sin), two * (cos - sin)], -1)

    key = query


def test_features_that_are_stretched_by_their_position() -> None:
    finding = one("rotary", seeded(HalvesInPlace))
    assert (finding.name, finding.severity) == ("rope-pairing", "bug")


# Two features, turned by 0°, 90° and 180°; one example, [S, N, D].

RIGHT = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]]], dtype=torch.float64)
LEFT = RIGHT * torch.tensor([1.0, -1.0], dtype=torch.float64)
STILL = RIGHT[:, :1].expand(1, 3, 2)


def test_the_law_by_hand() -> None:
    assert rotary.change(RIGHT, RIGHT) == rotary.change(STILL, STILL) == 0
    assert rotary.change(RIGHT, LEFT) == 2  # 1, -1 and 1
    assert rotary.change(RIGHT, STILL) == 2
    assert rotary.opposite(RIGHT, LEFT)
    assert not rotary.opposite(RIGHT, RIGHT)
    assert rotary.moving(STILL).tolist() == [False, False]
    assert rotary.moving(RIGHT).tolist() == [True, True]
    assert rotary.partners(RIGHT) == [(0, 1)]


def test_differences_forget_what_is_added_and_the_size() -> None:
    x = torch.cat([torch.zeros_like(RIGHT), RIGHT])[:, None]  # [B, H, N, D]
    added = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    by = torch.tensor([1.0, 2.0, 3.0])[:, None]
    assert torch.allclose(rotary.differences(x * by + added), RIGHT)


def test_the_axis_by_whose_index_vectors_turn() -> None:
    raw = torch.randn(2, 3, 4, 2, dtype=torch.float64)
    for dim, size in enumerate((2, 3, 4)):
        shape = [1, 1, 1]
        shape[dim] = size
        angle = torch.arange(size, dtype=torch.float64).view(shape)
        x = torch.stack(
            [
                raw[..., 0] * angle.cos() - raw[..., 1] * angle.sin(),
                raw[..., 0] * angle.sin() + raw[..., 1] * angle.cos(),
            ],
            -1,
        )
        assert rotary.turned_along(3 * x, raw) == dim
    assert rotary.turned_along(raw, raw) is None
