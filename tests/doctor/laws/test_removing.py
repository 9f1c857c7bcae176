"""A key that is hidden and not removed: it keeps a weight, or its NaN spreads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from headwise.nn import MultiHeadAttention
from tests.doctor.laws.specimens import Attention, Causal, Padded, found, one, seeded

LAW = "removing"


class Clears(Padded):
    """padding_mask: [B, N], True = a real token. The others become 0, and are hidden if `masks`."""

    masks = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        clean = x if padding_mask is None else torch.where(padding_mask.bool()[..., None], x, 0)
        return self.attend(clean, clean, self.both(None, padding_mask) if self.masks else None)


class Pool(nn.Module):
    """lengths: [B], the number of real tokens of each example."""

    def __init__(self, zeros: bool = False) -> None:
        super().__init__()
        self.key, self.out, self.zeros = nn.Linear(16, 16), nn.Linear(16, 16), zeros
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        scores = self.key(x) @ self.query / 4
        weights = (scores * real if self.zeros else scores.masked_fill(~real, -torch.inf)).softmax(-1)
        return self.out((weights[:, None] @ x)[:, 0])


def mixed(scores: Tensor) -> Tensor:
    """Two heads turn the lowest score into the highest, after the mask."""
    return (scores.clamp(min=-1e4) * torch.tensor([1.0, 1, -1, -1])[:, None, None]).softmax(-1)


@pytest.mark.parametrize("module", [seeded(Clears), seeded(Pool, zeros=True), seeded(Padded, normalise=mixed)])
def test_padding_that_keeps_a_weight(module: nn.Module) -> None:
    findings = [(x.name, x.severity) for x in found(LAW, module) if x.severity != "note"]
    assert findings == [("masked-key-counts", "bug")]


class Pointers(Padded):
    """padding_mask: [B, N], True = a real token. Gives a number for each token, and so a narrower output for fewer."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(self.score(self.split(self.q(x)), self.split(self.k(x))), allowed).softmax(-1).mean(1)


@pytest.mark.parametrize("kind", [Padded, Pool, Pointers])
def test_padding_that_is_hidden(kind: type[nn.Module]) -> None:
    assert {x.severity for x in found(LAW, kind)} <= {"note"}


class BesideAConvolution(Padded):
    """padding_mask: [B, K], True = a real token. A convolution of its input goes past the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask) + self.near(x.mT).mT


def test_what_takes_another_way_is_not_checked() -> None:
    with pytest.raises(NotChecked, match="by another way than attention"):
        found(LAW, BesideAConvolution)
    with pytest.raises(NotApplicable, match="no mask"):
        found(LAW, Causal)


def test_zero_times_nan() -> None:
    finding = one(LAW, Attention)
    assert (finding.name, finding.severity) == ("masked-nan-leaks", "note")
    assert finding.numbers == {"rows": 12, "of": 12}  # three examples of four rows other than its own
    for module in (seeded(Clears, masks=True), MultiHeadAttention(16, 4)):
        assert found(LAW, module) == []
