"""Variants that the fit proves, where operations could not be read or hid something."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.checks.explained import check
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from tests.doctor.checks.specimens import found, one, seeded
from tests.doctor.checks.styles import Einsum, Masked, Plain, assert_at


class HalvesOfTheWidth(Plain):
    """Divided by sqrt(width)."""

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / self.width**0.5


class SoftmaxOverHeads(Einsum):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(1)


class Inverted(Masked):
    """mask: [B, Q, K], True = may attend."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return scores if allowed is None else scores.masked_fill(allowed, -1e9)


@pytest.mark.parametrize(
    ("module", "name", "words"),
    [
        (HalvesOfTheWidth, "wrong-scale", "sqrt"),
        (SoftmaxOverHeads, "softmax-axis", "heads"),
    ],
)
def test_a_variant_that_gives_the_same_output(module: type[nn.Module], name: str, words: str) -> None:
    finding = one("explained", seeded(module))
    assert (finding.name, finding.severity) == (name, "bug")
    assert words in finding.evidence
    assert "computed this way from its own weights, the output matches to" in finding.evidence
    assert finding.numbers["error"] < 1e-4 < finding.numbers["healthy_error"]
    assert_at(finding, module, f"class {module.__name__}")


def test_what_another_check_excused_is_not_said_again() -> None:
    patient = Patient(seeded(HalvesOfTheWidth))
    patient.excused.add("wrong-scale")
    assert list(check(patient)) == []


@pytest.mark.parametrize("module", [Plain, Einsum, Masked])
def test_a_healthy_one(module: type[nn.Module]) -> None:
    findings: list[Finding] = found("explained", seeded(module))
    assert findings == []


class Gated(Plain):
    """Something that no variant has: the output is multiplied by itself."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.sigmoid(super().attend(x, memory, allowed)).square() * x.sum(-1, keepdim=True)


def test_what_no_variant_reproduces_is_not_judged() -> None:
    with pytest.raises(NotChecked, match="no variant"):
        found("explained", seeded(Gated))
