"""The same call, again, later and with its tensors laid otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.laws.repetition import forgets
from tests.doctor.laws.specimens import Attention, Causal, Cross, Normed, altered, found, one, seeded, triangle

LAW = "repetition"


# Chance in eval mode.


def test_dropout_that_does_not_ask_for_the_mode() -> None:
    module = altered(normalise=lambda self, scores: functional.dropout(scores.softmax(-1), 0.25))
    finding = one(LAW, module)
    assert (finding.name, finding.severity, finding.numbers["p"]) == ("dropout-in-eval", "bug", 0.25)
    assert "dropout with p = 0.25 acts" in finding.evidence
    assert "functional.dropout(scores.softmax(-1), 0.25)" in finding.where.code


def test_other_chance_is_a_risk() -> None:
    finding = one(LAW, altered(normalise=lambda self, x: (x + 0.1 * torch.randn_like(x)).softmax(-1)))
    assert (finding.name, finding.severity) == ("dropout-in-eval", "risk")


# What a call leaves behind.


class Keeps(Attention):
    """Causal. Keeps something of its first call, or makes it anew for each."""

    again = False

    def __init__(self) -> None:
        super().__init__()
        self.kept: Any = None

    def keep(self, made: Any, fits: bool = True) -> Any:
        self.kept = made if self.kept is None or self.again or not fits else self.kept
        return self.kept


class KeepsItsKeys(Keeps):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        fits = self.kept is not None and self.kept.shape == memory.shape
        return super().attend(x, self.keep(memory.detach(), fits), allowed)


class KeepsItsScale(Keeps):
    def normalise(self, scores: Tensor) -> Tensor:
        last, self.kept = self.kept or 0.0, 0.0 if self.again else scores.detach().mean()
        return (scores * (1 + last)).softmax(-1)


class KeepsItsTriangle(Keeps):
    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, self.keep(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()))


class KeepsItsPadding(Keeps):
    """padding_mask: [B, K], True = a real token."""

    def both(self, mask: Tensor | None, padding_mask: Tensor | None) -> Tensor | None:
        if padding_mask is None:
            return super().both(mask, None)
        fits = self.kept is not None and self.kept.shape == padding_mask.shape
        return super().both(mask, self.keep(padding_mask, fits))


class KeepsTheMode(Keeps):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) * (2.0 if self.keep(self.training or None) else 1.0)


KEEPING = [
    (KeepsItsScale, "a second call with the same input"),
    (KeepsItsKeys, "one with other numbers differs"),
    (KeepsItsPadding, "one with another padding_mask differs"),
    (KeepsItsTriangle, "one with fewer tokens raises RuntimeError"),
    (KeepsTheMode, "after a call with the same input in train mode, one with the same input in eval mode differs"),
]


@pytest.mark.parametrize(("kind", "said"), KEEPING)
def test_state_of_an_earlier_call(kind: type[nn.Module], said: str) -> None:
    finding = one(LAW, seeded(kind))
    assert (finding.name, finding.severity) == ("state-kept", "bug")
    assert said in finding.evidence
    if kind is not KeepsTheMode:
        assert found(LAW, altered(kind, again=True)) == []


def test_a_method_that_forgets_makes_it_a_risk() -> None:
    assert one(LAW, altered(KeepsItsScale, reset=lambda self: None)).severity == "risk"
    names = "reset reset_cache clear_kv_cache start init_memory reset_parameters init_weights started clear_log"
    kinds = {name: type("Named", (nn.Module,), {name: lambda self: None}) for name in names.split()}
    forgetting = {name for name, kind in kinds.items() if forgets(kind())}
    assert forgetting == {"reset", "reset_cache", "clear_kv_cache", "start", "init_memory"}


class Local(Attention):
    def __init__(self, window: int, shared: dict[tuple[int, int], Tensor], by_window: bool) -> None:
        super().__init__()
        self.window, self.shared, self.by_window = window, shared, by_window

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        made = triangle(n, n) & ~triangle(n, n, -self.window)
        return x + self.attend(x, x, self.shared.setdefault((n, self.window if self.by_window else 0), made))


class Stack(nn.Module):
    """Layers that share their masks, by length alone or by length and window."""

    def __init__(self, by_window: bool = False) -> None:
        super().__init__()
        shared: dict[tuple[int, int], Tensor] = {}
        self.layers = nn.ModuleList(Local(window, shared, by_window) for window in (2, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_a_layer_that_uses_another_s_mask() -> None:
    finding = one(LAW, seeded(Stack))
    assert finding.evidence.startswith("layers.1 with the same input gives another output alone")
    assert found(LAW, seeded(Stack, by_window=True)) == []


# Memory layouts and arguments.


@pytest.mark.parametrize(
    ("read", "severity"),
    [
        (lambda x: x.view(-1, x.shape[-1]).view(x.shape), "risk"),
        (lambda x: torch.as_strided(x, x.shape, (x.shape[1] * x.shape[2], x.shape[2], 1)), "bug"),
    ],
)
def test_another_memory_layout(read: Any, severity: str) -> None:
    finding = one(LAW, altered(forward=lambda self, x: self.attend(read(x), x, None)))
    assert (finding.name, finding.severity) == ("noncontiguous-input", severity)


class Writes(Attention):
    """mask: [B, N], bool or integer, true for real tokens. What it writes to: "x", "mask", or a "copy" of both."""

    to = "copy"

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x if self.to == "x" else x.clone()
        x += 1.0
        if mask is None:
            return self.attend(x, x, None)
        mask = mask.to(torch.bool)
        hidden = mask.logical_not_() if self.to == "mask" else mask.logical_not()
        return self.attend(x, x, ~hidden[:, None, None])


def test_an_argument_that_is_written_to() -> None:
    for to, said in (
        ("x", "the input in place: 240 of its 240"),  # 3 examples, 5 tokens, 16 wide
        ("mask", "the mask 'mask' in place: 15 of its 15"),
    ):
        finding = next(x for x in found(LAW, altered(Writes, to=to)) if x.name == "input-modified")
        assert finding.severity == "bug"
        assert said in finding.evidence
    assert found(LAW, seeded(Writes)) == []


def test_healthy_ones() -> None:
    for module in (Cross, Normed, seeded(Causal, dropout=0.5)):
        assert found(LAW, module) == []
