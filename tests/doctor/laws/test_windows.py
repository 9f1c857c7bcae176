"""Windows: how many keys they hold, and where."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.calling.spec import Spec
from headwise.doctor.contract import Window
from headwise.doctor.finding import Finding
from headwise.doctor.laws.windows import check, off_by_one
from headwise.doctor.patient import NotApplicable, Patient
from tests.doctor.laws.specimens import Attention, seeded
from tests.doctor.laws.styles import Plain


def found(module: nn.Module, **stated: object) -> list[Finding]:
    return list(check(Patient(module, spec=Spec(**stated))))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "left", "right", "severity"),
    [
        ("sliding_window", 3, 0, None),
        ("sliding_window", 4, 0, "bug"),
        ("window", 4, 0, None),  # 4 before it
        ("window", 5, 0, "bug"),
        ("radius", 2, 0, "bug"),
        ("window_size", 4, 4, None),
        ("window_size", 2, 2, None),
        ("window_size", 3, 3, None),  # |i - j| < 4
        ("window_size", 6, 6, "bug"),
        ("window_size", 2, 1, None),  # 4 keys have no middle
        ("window_size", 4, 3, "bug"),
    ],
)
def test_how_a_window_of_4_may_count(name: str, left: int, right: int, severity: str | None) -> None:
    assert off_by_one(Window(4, name, True), left, right) == severity


class Windowed(Plain):
    """Causal; how many earlier keys a window lets through is left to `earlier`."""

    def __init__(self, name: str = "sliding_window", size: int = 3, earlier: int = 2) -> None:
        super().__init__()
        setattr(self, name, size)
        self._earlier = earlier

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        apart = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return super().score(q, k).masked_fill(~self.near(apart), -torch.inf)

    def near(self, apart: Tensor) -> Tensor:
        return (apart >= 0) & (apart <= self._earlier)


class OutsideOnly(Windowed):
    def near(self, apart: Tensor) -> Tensor:
        return apart > self._earlier


class Everything(Windowed):
    """Causal, and no window."""

    def __init__(self, use_sliding_window: bool = True) -> None:
        super().__init__()
        self.use_sliding_window = use_sliding_window

    def near(self, apart: Tensor) -> Tensor:
        return apart >= 0


class MaskMaker:
    def __init__(self, earlier: int) -> None:
        self.sliding_window, self.earlier = 3, earlier

    def near(self, apart: Tensor) -> Tensor:
        return (apart >= 0) & (apart <= self.earlier)


class HasAMaker(Windowed):
    """Another object has the window, and makes the mask."""

    def __init__(self, earlier: int) -> None:
        super().__init__("unused")
        self.maker = MaskMaker(earlier)

    def near(self, apart: Tensor) -> Tensor:
        return self.maker.near(apart)


class StepByStep(Plain):
    """A window of `sliding_window` tokens, itself included, token by token."""

    def __init__(self, early: int = 0) -> None:
        super().__init__()
        self.sliding_window, self._early = 3, early

    def forward(self, x: Tensor) -> Tensor:
        outs = []
        for n in range(1, x.shape[1] + 1):
            first = max(0, n - self.sliding_window) + (self._early if n == self.sliding_window else 0)
            outs.append(self.attend(x[:, n - 1 : n], x[:, first:n], None))
        return torch.cat(outs, 1)


@pytest.mark.parametrize(
    ("make", "name", "severity", "words"),
    [
        (lambda: Windowed(earlier=3), "window-off-by-one", "bug", "sees itself and 3 earlier positions"),
        (lambda: HasAMaker(3), "window-off-by-one", "bug", "sliding_window = 3"),
        (lambda: StepByStep(1), "window-off-by-one", "bug", "position 2 attends to 2 positions"),
        (OutsideOnly, "mask-polarity", "bug", "outside of a window"),
        (Everything, "window-ignored", "bug", "attends to 8 earlier positions"),
    ],
)
def test_a_wrong_window(make: type[nn.Module], name: str, severity: str, words: str) -> None:
    (finding,) = found(seeded(make))
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


def test_healthy_windows() -> None:
    for module in (Windowed(), Windowed("window", earlier=3), HasAMaker(2), StepByStep(), Everything(False)):
        assert found(module) == []
    with pytest.raises(NotApplicable, match="states no window"):
        found(Plain())


def test_a_window_that_is_stated() -> None:
    assert [x.name for x in found(Windowed("_", earlier=2), window=3)] == ["window-off-by-one"]
    assert found(Windowed("_", earlier=3), window=3) == []


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


class Closed(Round):
    closed = True


def test_a_window_that_goes_round() -> None:
    finding = next(check(Patient(seeded(Round))))
    assert (finding.name, finding.severity) == ("window-wraps", "bug")
    assert "of 16 tokens, query 0 attends to 2, from both ends" in finding.evidence
    with pytest.raises(NotApplicable, match="no window"):
        found(seeded(Closed))


class Shifted(nn.Module):
    """Windows of 2 x 2 places of a map [B, H, W, C], shifted by 1."""

    masks = True

    def __init__(self) -> None:
        super().__init__()
        self.window_size, self.shift_size = 2, 1
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


class ShiftedAcross(Shifted):
    masks = False


def test_windows_that_join_opposite_borders() -> None:
    (finding,) = found(seeded(ShiftedAcross))
    assert finding.name == "shift-mask"
    assert "in a map of 4 x 4 with windows of 2" in finding.evidence
    assert found(seeded(Shifted)) == []
