"""The layers that have a window, and those that should have one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Causal, found, one, seeded


class Layer(Attention):
    """Causal; sees `sliding_window` tokens, itself included, or all."""

    def __init__(self, windowed: bool) -> None:
        super().__init__()
        self.sliding_window = 3 if windowed else None

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        apart = at[:, None] - at
        allowed = (apart >= 0) & (apart < (self.sliding_window or len(at)))
        return x + self.attend(x, x, allowed)


class Stack(nn.Module):
    def __init__(self, windowed: list[bool], **config: Any) -> None:
        super().__init__()
        self.config = SimpleNamespace(sliding_window=3, **config)
        self.layers = nn.ModuleList(Layer(x) for x in windowed)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class SaysWhich(Stack):
    """The first layers use full attention, and the remaining ones a sliding window."""


class SaysTheOther(Stack):
    """The bottom layers use a sliding window while the top ones are global."""


def test_a_type_for_each_layer() -> None:
    types = ["full_attention", "sliding_attention", "sliding_attention"]
    finding = one("layer_windows", seeded(Stack, [True, True, False], layer_types=types))
    assert (finding.name, finding.severity) == ("window-ignored", "bug")
    assert "have a window: 0, 1" in finding.evidence
    assert found("layer_windows", seeded(Stack, [False, True, True], layer_types=types)) == []


def test_the_text_says_which() -> None:
    assert "first layers" in one("layer_windows", seeded(SaysWhich, [True, False, False])).evidence
    assert found("layer_windows", seeded(SaysWhich, [False, True, True])) == []
    assert one("layer_windows", seeded(SaysTheOther, [False, True, True])).name == "window-ignored"
    assert found("layer_windows", seeded(SaysTheOther, [True, False, False])) == []


def test_the_text_says_which_and_the_config_how_many() -> None:
    assert found("layer_windows", seeded(SaysWhich, [False, True, True], max_window_layers=1)) == []
    assert one("layer_windows", seeded(SaysWhich, [False, False, True], max_window_layers=1)).numbers["windowed"] == 1


def test_every_third_is_full() -> None:
    windowed = [True, True, False, True, True, False]
    assert found("layer_windows", seeded(Stack, windowed, sliding_window_pattern=3)) == []
    inverted = [not x for x in windowed]
    assert "every 3 layers" in one("layer_windows", seeded(Stack, inverted, sliding_window_pattern=3)).evidence


def test_nothing_is_said() -> None:
    assert found("layer_windows", seeded(Stack, [True, False, True])) == []
    with pytest.raises(NotChecked):
        found("layer_windows", seeded(Causal))
