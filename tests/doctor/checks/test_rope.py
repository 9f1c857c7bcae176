"""Rotary positions in every way they are written, and in the ways that are wrong."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Einsum, Plain, assert_at


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


class Longer(Rotary):
    """For four times the context, as YaRN does: the slow pairs turn four times slower, and the fast as before."""

    shares = (1.0, 0.625, 0.25, 0.25)

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        frequency = 10000.0 ** -(torch.arange(4) / 4) * torch.tensor(self.shares)
        return half(q, torch.arange(len(angle))[:, None] * frequency)

    key = query


class OfTheFastPairs(Longer):
    shares = (0.25, 0.625, 1.0, 1.0)


class OfAllPairs(Longer):
    shares = (0.25, 0.25, 0.25, 0.25)


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
        (MixedPairing, "(0 with 4, 1 with 5), but the maps are not rotations"),
        (MixedTheOtherWay, "(0 with 1, 2 with 3), but the maps are not rotations"),
        (OneOfEach, "queries are rotated in halves, keys in neighbours"),
    ],
)
def test_pairs_and_tables_that_do_not_fit(module: type[nn.Module], words: str) -> None:
    finding = one("rope", seeded(module))
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


class GrowsTwice(Rotary):
    """xPos without the division of the keys: 1.03 ** 5 squared is 1.34."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle) * 1.03 ** torch.arange(len(angle))[:, None]

    def key(self, k: Tensor, angle: Tensor) -> Tensor:
        return half(k, angle) * 1.03 ** torch.arange(len(angle))[:, None]


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (GrowsTwice, "at one position their product changes by 34% over 6 positions"),
        (OnlyQueries, "only the queries are rotated by their position; the keys are not"),
        (OnlyKeys, "only the keys are rotated by their position; the queries are not"),
        (ValuesToo, "the values are also rotated by their position"),
        (Opposite, "in opposite directions"),
        (OtherAngles, "by different angles (up to 0.50 rad apart)"),  # 0.1 x the sixth position's angle of 5
    ],
)
def test_queries_and_keys_that_are_not_rotated_alike(module: type[nn.Module], words: str) -> None:
    finding = one("rope", seeded(module))
    assert (finding.name, finding.severity) == ("rope-asymmetric", "bug")
    assert words in finding.evidence
    assert_at(
        finding,
        InEinsum if issubclass(module, InEinsum) else Rotary,
        'torch.einsum("bqhd,bkhd->bhqk"' if issubclass(module, InEinsum) else "scores = self.query(q, angle)",
    )


class Squares(Rotary):
    """The angle is that of the square of the position."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle * torch.arange(len(angle))[:, None] / 3)

    key = query


class RowsAndColumns(Rotary):
    """An image two wide: half of every head by row, half by column."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        at = torch.arange(q.shape[-2])
        row, column = (p[:, None] * torch.tensor([1.0, 0.1]) for p in (at // 2, at % 2))
        return torch.cat([neighbours(q[..., :4], row), neighbours(q[..., 4:], column)], dim=-1)

    key = query


@pytest.mark.parametrize("module", [Squares, RowsAndColumns])
def test_angles_of_no_sequence_are_a_risk(module: type[nn.Module]) -> None:
    finding = one("rope", seeded(module))
    assert (finding.name, finding.severity) == ("rope-asymmetric", "risk")
    assert "the angles do not grow linearly with the position" in finding.evidence


# YaRN's factor in cos and sin, and in the scale.


class StretchedPart(Rotary):
    """Half of every head is rotated, and stretched by 1.3; the scale is stretched for all of it."""

    power = 2

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        angle = angles(x.shape[1], 4)
        q, k = (torch.cat([y[..., :4], 1.3 * half(y[..., 4:], angle)], dim=-1) for y in (q, k))
        return self.out(self.merge((q @ k.mT * (1.3**self.power / 8**0.5)).softmax(-1) @ v))


class StretchedOnce(StretchedPart):
    power = 0


def test_yarns_factor_in_the_rotation_and_in_the_scale() -> None:
    finding = one("rope", seeded(StretchedPart))
    assert (finding.name, finding.severity) == ("mscale-twice", "bug")
    assert finding.numbers["mscale"] == pytest.approx(1.3, rel=1e-3)
    assert found("rope", seeded(StretchedOnce)) == []


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
        Plain,
        Einsum,
    ],
)
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("rope", seeded(module)) == []


def test_learned_positions_and_no_attention_are_not_judged() -> None:
    with pytest.raises(NotChecked):
        found("rope", nn.Linear(8, 8))


# The wrong axis, and no effect.


class OverHeads(Rotary):
    """The table runs over the heads, because queries and keys are still [B, N, H, D]."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k = (f(x).view(*x.shape[:2], 2, 8) for f in (self.q, self.k))
        q, k = (half(y, angles(y.shape[-2], 8)).transpose(1, 2) for y in (q, k))
        return self.out(self.merge((q @ k.mT / 8**0.5).softmax(-1) @ self.split(self.v(x))))


class Dropped(Rotary):
    """The rotated queries and keys are thrown away."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        half(q, angles(x.shape[1], 8)), half(k, angles(x.shape[1], 8))
        return self.out(self.merge((q @ k.mT / 8**0.5).softmax(-1) @ v))


class AllAtZero(Rotary):
    """Every token is at position 0."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, 0 * angle)

    key = query


class TableOfNoUse(Plain):
    def __init__(self) -> None:
        super().__init__(16, 2)
        self.register_buffer("cos_cached", angles(64, 8).cos())

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        _ = self.cos_cached[: x.shape[1]]
        return super().attend(x, memory, allowed)

    def forward(self, x: Tensor) -> Tensor:
        _ = self.cos_cached[: x.shape[1]]
        return self.attend(x, x, None)


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


class Off(Plain):
    """Without RoPE, though it could have it."""

    def __init__(self) -> None:
        super().__init__(16, 2)
        self.use_rope = False
        self.register_buffer("inv_freq", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.use_rope:
            x = x * self.inv_freq.sum()
        return self.attend(x, x, None)


def test_a_table_over_the_heads() -> None:
    finding = one("rope", seeded(OverHeads))
    assert (finding.name, finding.severity) == ("rope-axis", "bug")
    assert "by the number of their head, the same at every position" in finding.evidence


@pytest.mark.parametrize("module", [Dropped, AllAtZero, TableOfNoUse])
def test_tables_without_effect(module: type[nn.Module]) -> None:
    finding = one("rope", seeded(module))
    assert (finding.name, finding.severity) == ("rope-unused", "bug")


@pytest.mark.parametrize("module", [Sinusoids, TransformerXL, Off])
def test_no_rope_is_no_mistake(module: type[nn.Module]) -> None:
    assert found("rope", seeded(module)) == []


class WithoutMinus(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        cos, sin = (torch.cat([f, f], dim=-1) for f in (angle.cos(), angle.sin()))
        a, b = q.chunk(2, dim=-1)
        return q * cos + torch.cat([b, a], dim=-1) * sin

    key = query


def test_a_missing_sign_is_no_layout() -> None:
    finding = one("rope", seeded(WithoutMinus))
    assert finding.name == "rope-pairing"
    assert "the sine of the other with the same sign" in finding.evidence
    assert "cat([-x2, x1])" in finding.fix


class HalvesInPlace(Rotary):
    """The sine meets the feature itself, and not the other one of its pair."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        one, two = q.chunk(2, -1)
        cos, sin = angle.cos().float(), angle.sin().float()
        return torch.cat([one * (cos + sin), two * (cos - sin)], -1)

    key = query


def test_features_that_are_stretched_by_their_position() -> None:
    finding = one("rope", seeded(HalvesInPlace))
    assert (finding.name, finding.severity) == ("rope-pairing", "bug")


def test_a_longer_context_by_the_wrong_pairs() -> None:
    finding = one("rope", seeded(OfTheFastPairs))
    assert (finding.name, finding.severity) == ("rope-scaling", "bug")
    assert finding.numbers == pytest.approx({"fast": 0.25, "slow": 1.0}, abs=1e-2)
    assert found("rope", seeded(Longer)) == found("rope", seeded(OfAllPairs)) == []
