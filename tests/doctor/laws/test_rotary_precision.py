"""Angles that a half-precision module works out in half precision."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws import rotary_precision
from headwise.doctor.patient import NotChecked
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Plain, assert_at
from tests.doctor.laws.test_rotary import Rotary, complex_, half


class FollowsTheInput(Rotary):
    """The frequencies are a buffer, which .bfloat16() lowers with the weights."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 100.0 ** -(torch.arange(4) / 4), persistent=False)

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        freqs = torch.outer(torch.arange(q.shape[-2], dtype=self.inv_freq.dtype), self.inv_freq)
        cos, sin = freqs.cos(), freqs.sin()
        a, b = q.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)

    key = query


class ItsInputsDtype(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q, angle.to(q.dtype))

    key = query


@pytest.mark.parametrize("module", [FollowsTheInput, ItsInputsDtype])
def test_angles_in_half_precision(module: type[nn.Module]) -> None:
    finding = one("rotary_precision", seeded(module))
    assert (finding.name, finding.severity) == ("rope-half-precision", "risk")
    assert "in a bfloat16 module the angles of cos are bfloat16, and off by up to 0.4%" in finding.evidence
    if module is FollowsTheInput:
        assert_at(finding, module, "cos, sin = freqs.cos(), freqs.sin()")


# Healthy.


class InFloat32(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return half(q.float(), angle.float()).to(q.dtype)

    key = query


class ComplexInFloat32(Rotary):
    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        return complex_(q.float(), angle).to(q.dtype)

    key = query


@pytest.mark.parametrize("module", [InFloat32, ComplexInFloat32])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    assert found("rotary_precision", seeded(module)) == []


def test_where_there_are_no_angles_there_is_nothing_to_check() -> None:
    with pytest.raises(NotChecked, match="no cos or sin"):
        found("rotary_precision", seeded(Plain))


class RoundedFrequencies(Rotary):
    """The frequencies are rounded; the angles are computed in float32."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        frequencies = (100.0 ** -(torch.arange(4) / 4)).to(q.dtype).float()
        return half(q.float(), torch.arange(q.shape[2])[:, None] * frequencies).to(q.dtype)

    key = query


def test_frequencies_that_are_rounded() -> None:
    finding = one("rotary_precision", seeded(RoundedFrequencies))
    assert (finding.name, finding.severity) == ("rope-half-precision", "risk")
    assert "the angles of cos are float32, and off by up to 0.4%" in finding.evidence
    lowered = one("rotary_precision", seeded(RoundedFrequencies).bfloat16())
    assert lowered.severity == "bug"


class AnglesInBfloat16(Rotary):
    """In a module of any dtype."""

    def query(self, q: Tensor, angle: Tensor) -> Tensor:
        frequencies = (100.0 ** -(torch.arange(4) / 4)).bfloat16()
        return half(q, (torch.arange(q.shape[2]).bfloat16()[:, None] * frequencies).to(q.dtype))

    key = query


def test_angles_that_are_in_half_precision_whatever_the_module_is_in() -> None:
    finding = one("rotary_precision", seeded(AnglesInBfloat16))
    assert (finding.name, finding.severity) == ("rope-half-precision", "bug")
    assert "are numbers of half precision" in finding.evidence


class Cached(Attention):
    """Its table of cos and sin is made once."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        angles = torch.outer(torch.arange(1024, dtype=dtype), torch.tensor([1.0, 0.1], dtype=dtype)).float()
        self.register_buffer("cos_cached", angles.cos())
        self.register_buffer("sin_cached", angles.sin())

    def forward(self, x: Tensor) -> Tensor:
        cos, sin = self.cos_cached[: x.shape[1]].repeat(1, 2), self.sin_cached[: x.shape[1]].repeat(1, 2)
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        q, k = (y * cos + torch.cat((-y[..., 2:], y[..., :2]), -1) * sin for y in (q, k))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v))


def test_a_table_whose_positions_were_rounded() -> None:
    finding = one("rotary_precision", seeded(Cached, torch.bfloat16))
    assert (finding.name, finding.severity) == ("rope-half-precision", "bug")
    assert "of cos_cached [1024, 2]" in finding.evidence
    with pytest.raises(NotChecked, match="no cos or sin"):
        found("rotary_precision", seeded(Cached))


class OfItsOwnDtype(Attention):
    """Its weights, and what it casts its input to, are in bfloat16."""

    def __init__(self, lowers: bool = True) -> None:
        super().__init__()
        self.dtype, self.angles_dtype, self.lowers = torch.bfloat16, torch.float32, lowers
        self.to(self.dtype)

    def forward(self, x: Tensor) -> Tensor:
        given, x = x.dtype, x.to(self.dtype)
        at = torch.arange(x.shape[1], dtype=x.dtype if self.lowers else self.angles_dtype)
        angles = torch.outer(at, 100.0 ** -torch.arange(2, dtype=at.dtype)).repeat(1, 2)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        q, k, v = (self.split(w(x)) for w in (self.q, self.k, self.v))
        q, k = (y * cos + torch.cat((-y[..., 2:], y[..., :2]), -1) * sin for y in (q, k))
        return self.out(self.merge(self.score(q, k).softmax(-1) @ v)).to(given)


def test_a_module_that_casts_its_input_to_a_dtype_of_its_own() -> None:
    finding = one("rotary_precision", seeded(OfItsOwnDtype))
    assert (finding.name, finding.severity) == ("rope-half-precision", "bug")
    assert found("rotary_precision", seeded(OfItsOwnDtype, False)) == []


def test_numbers_by_hand() -> None:
    angles = torch.arange(1.0, 21.0) / 7
    assert rotary_precision.rounded(angles.bfloat16().float())
    assert not rotary_precision.rounded(angles)
    assert not rotary_precision.rounded(torch.arange(100.0))  # whole numbers say nothing
    assert rotary_precision.error_of(torch.tensor([1.01]), torch.tensor([1.0])) == pytest.approx(0.01, rel=1e-3)
    rows = torch.arange(1024.0)[:, None].expand(1024, 2)
    assert rotary_precision.repeated(rows) == 0
    assert rotary_precision.repeated(rows.bfloat16()) > 0.5
    assert rotary_precision.repeated(torch.ones(1024, 2)) == 0  # no table of positions
