"""What a mask does to the scores: every healthy way of writing one, and the wrong ways."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.laws.masked_scores import check
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from tests.doctor.laws.specimens import Attention, Cross, found, one, seeded
from tests.doctor.laws.styles import Masked, Plain, assert_at

LAW, INF = "masked_scores", torch.inf


class Padded(Attention):
    """padding: [B, K], 1 = a real token, 0 = padding."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        return self.attend(x, x, padding)

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(allowed[:, None, None] == 0, -INF)


def written(kind: type[nn.Module], hidden: Callable[[Tensor, Tensor], Tensor]) -> nn.Module:
    """The module with other code between the scores and the softmax."""
    return seeded(kind, fill=lambda scores, mask: scores if mask is None else hidden(scores, mask))


class Weighs(Masked):
    """mask: [B, Q, K], True = may attend. It acts on the weights."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        weights = torch.softmax(self.score(q, k), dim=-1)
        return self.out(self.merge((weights if allowed is None else self.hide(weights, allowed)) @ v))

    def hide(self, weights: Tensor, allowed: Tensor) -> Tensor:
        weights = weights * allowed
        return weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)


@pytest.mark.parametrize(
    "module",
    [
        *(seeded(Padded), seeded(Cross), seeded(Weighs)),
        written(Padded, lambda x, real: x + (1.0 - real[:, None, None].float()) * torch.finfo(x.dtype).min),
    ],
)
def test_a_healthy_one(module: nn.Module) -> None:
    assert found(LAW, module) == []


def another_example(scores: Tensor, allowed: Tensor) -> Tensor:
    b, h, q, k = scores.shape
    return scores.view(b * h, q, k).masked_fill(~allowed[:, 0].repeat(h, 1, 1), -INF).view(scores.shape)


@pytest.mark.parametrize(
    ("kind", "hidden", "name", "severity", "words"),
    [
        (Masked, lambda x, m: x.masked_fill(m, -INF), "mask-polarity", "bug", "exactly the cells that it should allow"),
        (Padded, lambda x, m: x.masked_fill(m[:, None, None].bool(), -INF), "mask-polarity", "bug", "`padding` ("),
        (Masked, lambda x, m: x + m.float(), "mask-added", "bug", "change by +1"),
        (Padded, lambda x, m: x * m[:, None, None], "mask-multiplied", "bug", "masked scores become 0"),
        (Masked, lambda x, m: x.masked_fill(~m, 1e-9), "mask-fill-too-small", "bug", "1e-09 (1e-9 for -1e9?)"),
        (Masked, lambda x, m: x - ~m * 5, "mask-fill-too-small", "bug", "lowers masked scores by only 5"),
        (Masked, lambda x, m: x.masked_fill(~m, -2000.0), "mask-fill-too-small", "risk", "to only -2000"),
        (Padded, lambda x, m: x.masked_fill(m[:, None, :, None] == 0, -INF), "mask-broadcast", "bug", "masks queries"),
        (Masked, lambda x, m: x.masked_fill(~m.mT, -INF), "mask-broadcast", "bug", "masks other cells"),
        (Masked, another_example, "mask-head-order", "bug", "of example 1 acts on head 1 of example 0"),
    ],
)
def test_a_wrong_one(
    kind: type[nn.Module], hidden: Callable[[Tensor, Tensor], Tensor], name: str, severity: str, words: str
) -> None:
    finding = one(LAW, written(kind, hidden))
    assert (finding.name, finding.severity) == (name, severity)
    assert words in finding.evidence


class Named(nn.Module):
    """Its argument's name is all that speaks of it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Plain()

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.inner.attend(x, x, None if padding_mask is None else padding_mask.bool()[:, None, None])


class NamedAsTorchNamesIt(Named):
    """The same."""

    def forward(self, x: Tensor, key_padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, key_padding_mask)


def test_a_name_alone_is_a_risk_unless_it_is_torchs_own() -> None:
    for kind, severity in ((Named, "risk"), (NamedAsTorchNamesIt, "bug")):
        finding = one(LAW, kind)
        assert (finding.name, finding.severity) == ("mask-polarity", severity)


class AfterTheSoftmax(Weighs):
    """mask: [B, Q, K], True = may attend. With -inf no call gives numbers."""

    number = 0.0

    def hide(self, weights: Tensor, allowed: Tensor) -> Tensor:
        return weights.masked_fill(~allowed, self.number)


def test_a_mask_that_acts_after_the_softmax() -> None:
    for number in (0.0, -INF):
        finding = next(check(Patient(seeded(AfterTheSoftmax, number=number))))
        assert (finding.name, finding.severity) == ("mask-after-softmax", "bug")
        assert_at(finding, AfterTheSoftmax, "masked_fill(~allowed")


class PassedOn(nn.Module):
    """Its mask is that of nn.MultiheadAttention: a bool one hides. A GRU brings hidden tokens to later ones."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.gru = nn.MultiheadAttention(16, 4, batch_first=True), nn.GRU(16, 16, batch_first=True)

    def forward(self, x: Tensor, src_key_padding_mask: Tensor | None = None) -> Tensor:
        return self.gru(x + self.attention(x, x, x, key_padding_mask=src_key_padding_mask)[0])[0]


def test_what_little_is_known_of() -> None:
    with pytest.raises(NotChecked, match="src_key_padding_mask: what it hides reaches the output by another way"):
        found(LAW, PassedOn)
    with pytest.raises(NotApplicable, match="takes no mask"):
        found(LAW, Plain)
    silent = seeded(Masked)
    nn.init.zeros_(silent.v.weight), nn.init.zeros_(silent.v.bias)
    with pytest.raises(NotChecked, match="a projection is 0"):
        found(LAW, silent)
