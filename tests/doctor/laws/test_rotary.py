"""Rotary positions in every way they are written, and in the ways that are wrong; the precision of their angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import rotary
from headwise.doctor.patient import Patient
from tests.doctor.laws.specimens import Attention, found, one
from tests.doctor.laws.styles import Plain, assert_at

torch.manual_seed(0)  # for the modules that are made here


def angles(n: int, width: int) -> Tensor:
    """[N, width / 2]"""
    return torch.arange(n)[:, None] * 100.0 ** -(torch.arange(width // 2) * 2 / width)


def in_pairs(x: Tensor, angle: Tensor, *, pairs: str = "halves", tables: str = "", sign: int = -1) -> Tensor:
    """x [.., N, D] turned. `tables`: for which pairs cos and sin are laid out, if for others."""
    both = [f.repeat_interleave(2, -1) if (tables or pairs) == "neighbours" else torch.cat([f, f], -1)
            for f in (angle.cos(), angle.sin())]  # fmt: skip
    if pairs == "neighbours":
        other = torch.stack([sign * x[..., 1::2], x[..., ::2]], dim=-1).flatten(-2)
    else:
        a, b = x.chunk(2, dim=-1)
        other = torch.cat([sign * b, a], dim=-1)
    return x * both[0] + other * both[1]


def neighbours(x: Tensor, angle: Tensor) -> Tensor:
    return in_pairs(x, angle, pairs="neighbours")


def complex_(x: Tensor, angle: Tensor) -> Tensor:
    turned = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def still(x: Tensor, angle: Tensor) -> Tensor:
    return x


class Rotary(Attention):
    """Two heads of eight, [B, H, N, D]. query, key, value: what is done to them."""

    def __init__(self, query: Any = in_pairs, key: Any = None, value: Any = still) -> None:
        super().__init__(16, 2, query=query, key=key or query, value=value)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        angle = angles(x.shape[1], 8)
        scores = self.query(q, angle) @ self.key(k, angle).mT / 8**0.5
        return self.out(self.merge(scores.softmax(-1) @ self.value(v, angle)))


def before(x: Tensor, angle: Tensor) -> Tensor:
    """The rotated part stands before the plain one."""
    return torch.cat([in_pairs(x[..., :4], angle[:, :2]), x[..., 4:]], -1)


def behind(x: Tensor, angle: Tensor) -> Tensor:
    return torch.cat([x[..., :4], in_pairs(x[..., 4:], angle[:, :2])], -1)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            Rotary(lambda x, angle: in_pairs(x, angle, tables="neighbours")),
            "the queries of one token have other lengths",
        ),
        (
            Rotary(lambda x, angle: in_pairs(x, angle, pairs="neighbours", tables="halves")),
            "have other lengths at other",
        ),
        (Rotary(lambda x, angle: in_pairs(x, angle, sign=1)), "get the sine with the same sign"),
        (Rotary(in_pairs, neighbours), "in other pairs (0 with 4, 1 with 5) than keys (0 with 1, 2 with 3)"),
        (Rotary(before, behind), "in other pairs (0 with 2, 1 with 3) than keys (4 with 6, 5 with 7)"),
    ],
)
def test_pairs_and_tables_that_do_not_fit(module: nn.Module, words: str) -> None:
    finding = one("rotary", module)
    assert (finding.name, finding.severity) == ("rope-pairing", "bug")
    assert words in finding.evidence


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (Rotary(in_pairs, still), "only the queries are rotated by their position; the keys are not"),
        (Rotary(still, in_pairs), "only the keys are rotated by their position; the queries are not"),
        (Rotary(value=in_pairs), "the values are also rotated by their position"),
        (Rotary(in_pairs, lambda x, angle: in_pairs(x, -angle)), "by different angles"),
    ],
)
def test_queries_and_keys_that_are_not_rotated_alike(module: nn.Module, words: str) -> None:
    finding = one("rotary", module)
    assert (finding.name, finding.severity) == ("rope-asymmetric", "bug")
    assert words in finding.evidence
    assert_at(finding, Rotary, "scores = self.query(q, angle)")


class OverHeads(Rotary):
    """The table runs over the heads, because queries and keys are still [B, N, H, D]."""

    def forward(self, x: Tensor) -> Tensor:
        q, k = (f(x).view(*x.shape[:2], 2, 8) for f in (self.q, self.k))
        q, k = (in_pairs(y, angles(y.shape[-2], 8)).transpose(1, 2) for y in (q, k))
        return self.out(self.merge((q @ k.mT / 8**0.5).softmax(-1) @ self.split(self.v(x))))


def test_a_table_over_the_heads() -> None:
    finding = one("rotary", OverHeads)
    assert (finding.name, finding.severity) == ("rope-axis", "bug")
    assert "by the number of their head, the same at every position" in finding.evidence


# Healthy.


def rows_and_columns(x: Tensor, angle: Tensor) -> Tensor:
    """An image two wide: half of every head by row, half by column."""
    at = torch.arange(x.shape[-2])
    row, column = (p[:, None] * torch.tensor([1.0, 0.1]) for p in (at // 2, at % 2))
    return torch.cat([neighbours(x[..., :4], row), neighbours(x[..., 4:], column)], dim=-1)


def grown(x: Tensor, angle: Tensor, by: float = 0.97) -> Tensor:
    """xPos: queries grow and keys shrink with the position, so that scores fall with the distance."""
    return in_pairs(x, angle) * by ** torch.arange(len(angle))[:, None]


class Sinusoids(Attention):
    """Positions that are added to the input."""

    def forward(self, x: Tensor) -> Tensor:
        angle = angles(x.shape[1], x.shape[2])
        x = x + torch.cat([angle.sin(), angle.cos()], -1)
        return self.attend(x, x, None)


@pytest.mark.parametrize(
    "module",
    [
        *(Plain(), Sinusoids()),
        *(Rotary(), Rotary(neighbours), Rotary(complex_), Rotary(before), Rotary(rows_and_columns)),
        Rotary(grown, lambda x, angle: grown(x, angle, 1 / 0.97)),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("rotary", module) == []


# The precision of the angles.


def in_bfloat16(x: Tensor, angle: Tensor) -> Tensor:
    """In a module of any dtype."""
    frequencies = (100.0 ** -(torch.arange(4) / 4)).bfloat16()
    return in_pairs(x, (torch.arange(x.shape[2]).bfloat16()[:, None] * frequencies).to(x.dtype))


class Cached(Attention):
    """Its table of cos and sin is made once."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        table = torch.outer(torch.arange(1024, dtype=dtype), torch.tensor([1.0, 0.1], dtype=dtype)).float()
        self.register_buffer("cos_cached", table.cos())
        self.register_buffer("sin_cached", table.sin())

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cos_cached[: x.shape[1]].repeat(1, 2), self.sin_cached[: x.shape[1]].repeat(1, 2)
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        q, k = (y * cos + torch.cat((-y[..., 2:], y[..., :2]), -1) * sin for y in (q, k))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


class OfItsOwnDtype(Rotary):
    """Its weights, and what it casts its input to, are in bfloat16."""

    def __init__(self, query: Any) -> None:
        super().__init__(query)
        self.dtype = torch.bfloat16
        self.to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.to(self.dtype)).to(x.dtype)


def lowered(x: Tensor, angle: Tensor) -> Tensor:
    return in_pairs(x, angle.to(x.dtype))


def in_float32(x: Tensor, angle: Tensor) -> Tensor:
    return in_pairs(x.float(), angle.float()).to(x.dtype)


@pytest.mark.parametrize(
    ("module", "severity", "words"),
    [
        (Rotary(lowered), "risk", "the angles of cos are bfloat16"),
        (Rotary(in_bfloat16), "bug", "are numbers of half precision"),
        (OfItsOwnDtype(lowered), "bug", "the angles of cos are bfloat16"),
        (Cached(torch.bfloat16), "bug", "of cos_cached [1024, 2]"),
    ],
)
def test_angles_in_half_precision(module: nn.Module, severity: str, words: str) -> None:
    finding = next(rotary.check(Patient(module)))
    assert (finding.name, finding.severity) == ("rope-half-precision", severity)
    assert words in finding.evidence


@pytest.mark.parametrize(
    "module",
    [
        Rotary(in_float32),
        Rotary(lambda x, angle: complex_(x.float(), angle).to(x.dtype)),
        Cached(),
        OfItsOwnDtype(in_float32),
    ],
)
def test_angles_in_single_precision(module: nn.Module) -> None:
    assert found("rotary", module) == []
