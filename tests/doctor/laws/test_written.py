"""Results that are thrown away, and lists that hold one layer several times."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Plain, assert_at

LAW = "written"


class Stack(nn.Module):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer.attend(x, x, None)
        return x


class OneThreeTimes(Stack):
    """Layers one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Attention()] * 3)


class OnPurpose(OneThreeTimes):
    """The layers share their weights, as in ALBERT."""


def test_one_layer_in_several_places() -> None:
    finding = one(LAW, seeded(OneThreeTimes))
    assert (finding.name, finding.severity) == ("layers-shared", "risk")
    assert "layers holds one Attention 3 times among its 3 layers" in finding.evidence


class MaskDiscarded(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) == 1, -torch.inf)
        return scores


class InPlace(Plain):
    """With `_`, with `inplace` and with `out`, the old tensor changes; other objects have methods of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        scores.masked_fill_(torch.ones(scores.shape[-2:]).triu(1) == 1, -1e4)
        functional.dropout(scores, 0.0, inplace=True)
        torch.mul(scores, 1.0, out=torch.empty(()))
        self.seen.add(len(scores))
        return scores


class NoCall(nn.Module):
    """It cannot be called by trial, and its code can be read."""

    def forward(self, x: Tensor, table: dict[str, Tensor]) -> Tensor:
        weights = (x @ table["keys"]).softmax(-1)
        weights.masked_fill(table["mask"], 0.0)
        return weights @ table["values"]


def test_what_is_thrown_away() -> None:
    finding = one(LAW, seeded(MaskDiscarded))
    assert (finding.name, finding.severity) == ("result-discarded", "bug")
    assert "scores = scores.masked_fill(" in finding.fix
    assert_at(finding, MaskDiscarded, "scores.masked_fill(")


@pytest.mark.parametrize("kind", [InPlace, Stack, OnPurpose])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []


def test_code_is_read_where_no_call_is_found() -> None:
    diagnosis = headwise.diagnose(NoCall())
    assert [x.name for x in diagnosis.bugs] == ["result-discarded"]
    assert diagnosis.not_examined.startswith("NoCall.forward(x, table)")
    assert not diagnosis.healthy
