"""Windows: how many keys they hold, and where."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling.spec import Spec
from headwise.doctor.contract import Window
from headwise.doctor.laws.windows import check, fits
from headwise.doctor.patient import NotApplicable, Patient
from tests.doctor.laws.specimens import Attention, found, one, seeded
from tests.doctor.laws.styles import Plain

LAW = "windows"


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("sliding_window", [(3, 0)], [(4, 0)]),
        ("window", [(4, 0)], [(5, 0)]),  # 4 before it
        ("window_size", [(4, 4), (2, 2), (2, 1)], [(6, 6), (4, 3)]),  # 4 keys have no middle
    ],
)
def test_how_a_window_of_4_may_count(name: str, right: list[tuple[int, int]], wrong: list[tuple[int, int]]) -> None:
    assert all(fits(Window(4, name, True), *sides) for sides in right)
    assert not any(fits(Window(4, name, True), *sides) for sides in wrong)


class Windowed(Plain):
    """Causal; what a window of 3 lets through is left to `near`."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        apart = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return super().score(q, k).masked_fill(~((apart >= 0) & self.near(apart)), -torch.inf)

    def near(self, apart: Tensor) -> Tensor:
        return apart < 3


def one_more(apart: Tensor) -> Tensor:
    return apart <= 3


def everything(apart: Tensor) -> Tensor:
    return apart >= 0


@pytest.mark.parametrize(
    ("parts", "name", "words"),
    [
        ({"sliding_window": 3, "near": one_more}, "window-off-by-one", "sees itself and 3 earlier positions"),
        ({"sliding_window": 3, "use_sliding_window": True, "near": everything}, "window-ignored", "to 8 earlier"),
    ],
)
def test_a_wrong_window(parts: dict[str, Any], name: str, words: str) -> None:
    finding = one(LAW, seeded(Windowed, **parts))
    assert (finding.name, finding.severity) == (name, "bug")
    assert words in finding.evidence


def test_a_healthy_window() -> None:
    off = {"sliding_window": 3, "use_sliding_window": False, "near": everything}
    for parts in ({"sliding_window": 3}, {"window": 3, "near": one_more}, off):
        assert found(LAW, seeded(Windowed, **parts)) == []
    stated = [Patient(seeded(Windowed, near=near), spec=Spec(window=3)) for near in (one_more, lambda x: x < 3)]
    assert [[x.name for x in check(patient)] for patient in stated] == [[], ["window-off-by-one"]]


class Round(Attention):
    """Each token attends to itself and to the one before it, which torch.roll brings."""

    closed = False

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = (self.split(p(x)) for p in (self.q, self.k, self.v))
        two = [torch.stack([y, y.roll(1, 2)], 3) for y in (k, v)]  # [B, H, N, 2, D]
        scores = (q[..., None, :] @ two[0].mT)[..., 0, :] / 2
        if self.closed:
            first = torch.zeros(x.shape[1], 2, dtype=torch.bool)
            first[0, 1] = True
            scores = scores.masked_fill(first, -torch.inf)
        return self.out(self.merge((scores.softmax(-1)[..., None, :] @ two[1])[..., 0, :]))


def test_a_window_that_goes_round() -> None:
    finding = next(check(Patient(seeded(Round))))
    assert (finding.name, finding.severity) == ("window-wraps", "bug")
    assert "of 16 tokens, query 0 attends to 2, from both ends" in finding.evidence
    with pytest.raises(NotApplicable, match="no window"):
        found(LAW, seeded(Round, closed=True))


class Shifted(nn.Module):
    """Windows of 2 x 2 places of a map [B, H, W, C], shifted by 1."""

    def __init__(self, masks: bool) -> None:
        super().__init__()
        self.window_size, self.shift_size, self.masks = 2, 1, masks
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def cut(self, x: Tensor) -> Tensor:
        """[B * windows, 4, C]"""
        b, h, w, c = x.shape
        return x.view(b, h // 2, 2, w // 2, 2, c).transpose(2, 3).reshape(-1, 4, c)

    def forward(self, x: Tensor) -> Tensor:
        b, h, w, c = x.shape
        q, k, v = self.qkv(self.cut(x.roll((-1, -1), (1, 2)))).chunk(3, -1)
        scores = q @ k.mT / 4
        if self.masks:
            mask = torch.zeros(1, h, w, 1)
            mask[:, -1] += 1
            mask[:, :, -1] += 2
            regions = self.cut(mask)
            scores = scores.unflatten(0, (b, -1)).masked_fill(regions != regions.mT, -torch.inf).flatten(0, 1)
        out = self.out(scores.softmax(-1) @ v).view(b, h // 2, w // 2, 2, 2, c).transpose(2, 3).reshape(b, h, w, c)
        return out.roll((1, 1), (1, 2))


def test_windows_that_join_opposite_borders() -> None:
    finding = one(LAW, seeded(Shifted, masks=False))
    assert finding.name == "shift-mask"
    assert "in a map of 4 x 4 with windows of 2" in finding.evidence
    assert found(LAW, seeded(Shifted, masks=True)) == []
