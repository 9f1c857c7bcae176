"""Where low-rank updates of a packed projection are put."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotApplicable
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Plain


class ByHead(nn.Module):
    """A packed weight laid out head by head; updates of rank 2 for queries and values, which begin at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.lora_A, self.lora_B = nn.Parameter(torch.randn(4, 16)), nn.Parameter(torch.zeros(32, 2))
        self.register_buffer("places", torch.cat(self.of(torch.arange(48))), persistent=False)

    def of(self, rows: Tensor) -> list[Tensor]:
        parts = rows.view(4, 3, 4).unbind(1)
        return [parts[0].flatten(), parts[2].flatten()]

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        down = functional.linear(x, self.lora_A).chunk(2, -1)
        up = [functional.linear(a, w) for a, w in zip(down, self.lora_B.chunk(2), strict=True)]
        y = self.qkv(x).index_add(-1, self.places, torch.cat(up, -1))
        q, k, v = (z.transpose(1, 2) for z in y.view(b, n, 4, 3, 4).unbind(3))
        return self.out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class UpdatesInThirds(ByHead):
    def of(self, rows: Tensor) -> list[Tensor]:
        return [rows[:16], rows[32:]]


class OfAll(Plain):
    """One update of the whole packed weight."""

    def __init__(self) -> None:
        super().__init__()
        self.lora_down, self.lora_up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.lora_up.weight)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x + self.lora_up(self.lora_down(x)), memory, allowed)


class Branches(nn.Module):
    """An update for the queries and one for the values, added to what the packed projection gives."""

    values = slice(32, 48)

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.lora_q, self.lora_v = (nn.Sequential(nn.Linear(16, 2), nn.Linear(2, 16, bias=False)) for _ in range(2))
        nn.init.zeros_(self.lora_q[1].weight)
        nn.init.zeros_(self.lora_v[1].weight)

    def forward(self, x: Tensor) -> Tensor:
        y = self.qkv(x).clone()
        y[..., :16] += self.lora_q(x)
        y[..., self.values] += self.lora_v(x)
        q, k, v = (z.unflatten(-1, (4, 4)).transpose(1, 2) for z in y.chunk(3, -1))
        return self.out(((q @ k.mT / 2).softmax(-1) @ v).transpose(1, 2).flatten(2))


class ValuesToKeys(Branches):
    values = slice(16, 32)


def test_an_update_of_the_values_that_reaches_the_keys() -> None:
    finding = one("lora_order", seeded(ValuesToKeys))
    assert (finding.name, finding.severity) == ("qkv-order", "bug")
    assert "lora_v.0.weight changes the keys, and not the values" in finding.evidence
    assert found("lora_order", seeded(Branches)) == []


def test_updates_in_another_order() -> None:
    finding = one("lora_order", seeded(UpdatesInThirds))
    assert (finding.name, finding.severity) == ("qkv-order", "bug")
    assert "lora_A changes" in finding.evidence
    assert len(finding.numbers) > 1


def test_healthy_ones() -> None:
    for kind in (ByHead, OfAll):
        assert found("lora_order", seeded(kind)) == []
    with pytest.raises(NotApplicable):
        found("lora_order", seeded(Plain))
