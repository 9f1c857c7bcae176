"""Lists that hold one layer several times."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, found, one, seeded


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
    finding = one("layers_shared", seeded(OneThreeTimes))
    assert (finding.name, finding.severity) == ("layers-shared", "bug")
    assert "layers holds one Attention 3 times among its 3 layers" in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Stack, OnPurpose, Activations):
        assert found("layers_shared", seeded(kind)) == []
    assert torch.is_tensor(seeded(OnPurpose)(torch.ones(1, 2, 16)))
