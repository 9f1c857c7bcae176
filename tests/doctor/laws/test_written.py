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


class Activations(Stack):
    """What has no weights may stand twice."""

    def __init__(self) -> None:
        super().__init__()
        relu = nn.ReLU()
        self.head = nn.Sequential(nn.Linear(16, 16), relu, nn.Linear(16, 16), relu)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(super().forward(x))


def test_one_layer_in_several_places() -> None:
    finding = one(LAW, seeded(OneThreeTimes))
    assert (finding.name, finding.severity) == ("layers-shared", "risk")
    assert "layers holds one Attention 3 times among its 3 layers" in finding.evidence


class MaskDiscarded(Plain):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1) == 1, -torch.inf)
        return scores


class DropoutDiscarded(Plain):
    def merge(self, x: Tensor) -> Tensor:
        functional.dropout(x, 0.1, self.training)
        return super().merge(x)


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


@pytest.mark.parametrize(
    ("kind", "line", "fix"),
    [
        (MaskDiscarded, "scores.masked_fill(", "scores = scores.masked_fill("),
        (
            DropoutDiscarded,
            "functional.dropout(x, 0.1, self.training)",
            "x = functional.dropout(x, 0.1, self.training)",
        ),
    ],
)
def test_what_is_thrown_away(kind: type[nn.Module], line: str, fix: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("result-discarded", "bug")
    assert fix in finding.fix
    assert_at(finding, kind, line)


@pytest.mark.parametrize("kind", [Attention, InPlace, Stack, OnPurpose, Activations])
def test_a_healthy_one(kind: type[nn.Module]) -> None:
    assert found(LAW, seeded(kind)) == []


def test_code_is_read_where_no_call_is_found() -> None:
    diagnosis = headwise.diagnose(NoCall())
    assert [x.name for x in diagnosis.bugs] == ["result-discarded"]
    assert diagnosis.not_examined.startswith("NoCall.forward(x, table)")
    assert not diagnosis.healthy
