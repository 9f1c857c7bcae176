"""What a module keeps of an earlier call."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class KeepsItsPadding(Attention):
    """padding_mask: [B, K], True = a real token. It is kept as long as its shape fits."""

    kept: Tensor | None = None

    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return super().both(mask, None)
        if self.kept is None or self.kept.shape != padding_mask.shape:
            self.kept = padding_mask
        return super().both(mask, self.kept)


class KeepsItsTriangle(Attention):
    """Causal. The triangle of the first call is used again."""

    kept: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kept is None:
            self.kept = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.kept)


class KeepsByLength(KeepsItsTriangle):
    def forward(self, x: Tensor) -> Tensor:
        if self.kept is not None and len(self.kept) != x.shape[1]:
            self.kept = None
        return super().forward(x)


class CutsItsTriangle(KeepsItsTriangle):
    """Grows, and is cut to the length."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        if self.kept is None or len(self.kept) < n:
            self.kept = torch.ones(n, n, dtype=torch.bool).tril()
        return self.attend(x, x, self.kept[:n, :n])


class KeepsItsKeys(Cross):
    """The memory of the first call."""

    kept: Tensor | None = None

    def forward(self, x: Tensor, memory: Tensor, memory_mask: Tensor | None = None) -> Tensor:
        if self.kept is None or self.kept.shape[:2] != memory.shape[:2]:
            self.kept = memory
        return super().forward(x, self.kept, memory_mask)


class Local(Attention):
    def __init__(self, window: int, shared: dict[str, Tensor], by_window: bool) -> None:
        super().__init__()
        self.window, self.shared, self.by_window = window, shared, by_window

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        key = f"{n} {self.window if self.by_window else ''}"
        if key not in self.shared:
            distance = torch.arange(n)[:, None] - torch.arange(n)
            self.shared[key] = (distance >= 0) & (distance < self.window)
        return x + self.attend(x, x, self.shared[key])


class Stack(nn.Module):
    """Layers that share their masks, by length alone or by length and window."""

    def __init__(self, by_window: bool = False) -> None:
        super().__init__()
        shared: dict[str, Tensor] = {}
        self.layers = nn.ModuleList(Local(window, shared, by_window) for window in (2, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_layer_that_uses_another_s_mask() -> None:
    finding = one("kept_state", seeded(Stack))
    assert finding.evidence.startswith("layers.1 with the same input gives another output alone")
    assert found("kept_state", seeded(Stack, by_window=True)) == []


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (KeepsItsPadding, "one with another padding_mask differs by"),
        (KeepsItsTriangle, "one with more tokens raises RuntimeError"),
        (KeepsItsKeys, "one with other numbers differs by"),
    ],
)
def test_a_later_call_that_differs(kind: type[nn.Module], words: str) -> None:
    finding = one("kept_state", seeded(kind))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert words in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Attention, Causal, Cross, KeepsByLength, CutsItsTriangle):
        assert found("kept_state", seeded(kind)) == []
