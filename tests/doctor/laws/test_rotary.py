"""Rotary positions in every way they are written, and in the ways that are wrong; the precision of their angles."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import rotary
from headwise.doctor.patient import Patient
from tests.doctor.laws.specimens import found, one
from tests.doctor.laws.styles import Plain

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


def rotating(query: Any = in_pairs, key: Any = None) -> nn.Module:
    """Two heads of eight. query, key: what is done to queries and keys [B, H, N, D]."""

    def score(q: Tensor, k: Tensor) -> Tensor:
        angle = angles(q.shape[2], 8)
        return query(q, angle) @ (key or query)(k, angle).mT / 8**0.5

    return Plain(16, 2, score=score)


def split_and_turned(x: Tensor) -> Tensor:
    """Into two heads of eight, all of which are turned: those of the values, too."""
    return in_pairs(x.unflatten(-1, (2, 8)).transpose(1, 2), angles(x.shape[1], 8))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (
            rotating(lambda x, angle: in_pairs(x, angle, tables="neighbours")),
            "the queries of one token have other lengths at other positions",
        ),
        (rotating(lambda x, angle: in_pairs(x, angle, sign=1)), "get the sine with the same sign"),
        (rotating(in_pairs, neighbours), "in other pairs (0 with 4, 1 with 5) than keys (0 with 1, 2 with 3)"),
    ],
)
def test_pairs_and_tables_that_do_not_fit(module: nn.Module, words: str) -> None:
    finding = one("rotary", module)
    assert (finding.name, finding.severity) == ("rope-pairing", "bug")
    assert words in finding.evidence


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (rotating(in_pairs, still), "only the queries are rotated by their position; the keys are not"),
        (Plain(16, 2, split=split_and_turned), "the values are also rotated by their position"),
        (rotating(in_pairs, lambda x, angle: in_pairs(x, -angle)), "by different angles"),
    ],
)
def test_queries_and_keys_that_are_not_rotated_alike(module: nn.Module, words: str) -> None:
    finding = one("rotary", module)
    assert (finding.name, finding.severity) == ("rope-asymmetric", "bug")
    assert words in finding.evidence


def test_a_table_over_the_heads() -> None:
    def over_heads(q: Tensor, k: Tensor) -> Tensor:
        q, k = (in_pairs(x.transpose(1, 2), angles(x.shape[1], 8)).transpose(1, 2) for x in (q, k))
        return q @ k.mT / 8**0.5

    finding = one("rotary", Plain(16, 2, score=over_heads))
    assert (finding.name, finding.severity) == ("rope-axis", "bug")
    assert "by the number of their head, the same at every position" in finding.evidence


# Healthy.


def part(x: Tensor, angle: Tensor) -> Tensor:
    """The rotated part stands before the plain one."""
    return torch.cat([in_pairs(x[..., :4], angle[:, :2]), x[..., 4:]], -1)


def rows_and_columns(x: Tensor, angle: Tensor) -> Tensor:
    """An image two wide: half of every head by row, half by column."""
    at = torch.arange(x.shape[-2])
    row, column = (p[:, None] * torch.tensor([1.0, 0.1]) for p in (at // 2, at % 2))
    return torch.cat([neighbours(x[..., :4], row), neighbours(x[..., 4:], column)], dim=-1)


def grown(x: Tensor, angle: Tensor, by: float = 0.97) -> Tensor:
    """xPos: queries grow and keys shrink with the position, so that scores fall with the distance."""
    return in_pairs(x, angle) * by ** torch.arange(len(angle))[:, None]


@pytest.mark.parametrize(
    "module",
    [
        *(Plain(), rotating(), rotating(complex_), rotating(part), rotating(rows_and_columns)),
        rotating(grown, lambda x, angle: grown(x, angle, 1 / 0.97)),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found("rotary", module) == []


# The precision of the angles.


def in_bfloat16(x: Tensor, angle: Tensor) -> Tensor:
    """In a module of any dtype."""
    frequencies = (100.0 ** -(torch.arange(4) / 4)).bfloat16()
    return in_pairs(x, (torch.arange(x.shape[2]).bfloat16()[:, None] * frequencies).to(x.dtype))


def lowered(x: Tensor, angle: Tensor) -> Tensor:
    return in_pairs(x, angle.to(x.dtype))


def in_float32(x: Tensor, angle: Tensor) -> Tensor:
    return in_pairs(x.float(), angle.float()).to(x.dtype)


class Cached(Plain):
    """Its table of cos and sin is made once."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        table = torch.outer(torch.arange(1024, dtype=dtype), torch.tensor([1.0, 0.1], dtype=dtype)).float()
        self.register_buffer("cos_cached", table.cos())
        self.register_buffer("sin_cached", table.sin())

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        cos, sin = (table[: q.shape[2]].repeat(1, 2) for table in (self.cos_cached, self.sin_cached))
        return super().score(*(x * cos + torch.cat((-x[..., 2:], x[..., :2]), -1) * sin for x in (q, k)))


@pytest.mark.parametrize(
    ("module", "severity", "words"),
    [
        (rotating(lowered), "risk", "the angles of cos are bfloat16"),
        (rotating(lowered).bfloat16(), "bug", "the angles of cos are bfloat16"),
        (rotating(in_bfloat16), "bug", "are numbers of half precision"),
        (Cached(torch.bfloat16), "bug", "of cos_cached [1024, 2]"),
    ],
)
def test_angles_in_half_precision(module: nn.Module, severity: str, words: str) -> None:
    finding = next(rotary.check(Patient(module)))
    assert (finding.name, finding.severity) == ("rope-half-precision", severity)
    assert words in finding.evidence


@pytest.mark.parametrize("module", [rotating(in_float32), rotating(in_float32).bfloat16(), Cached(torch.float32)])
def test_angles_in_single_precision(module: nn.Module) -> None:
    assert found("rotary", module) == []
