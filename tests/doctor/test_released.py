"""What findings become in released code: one table, and every case of it is asked by a law."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor import laws
from headwise.doctor.catalogue import CATALOGUE, GRAVEST
from headwise.doctor.diagnosis import diagnose
from headwise.doctor.patient import Patient


def test_every_case_is_of_a_known_finding_and_asked_by_a_law() -> None:
    package = Path(laws.__file__).parent
    files = (*package.glob("*.py"), package.parent / "diagnosis.py")
    texts = "".join(x.read_text(encoding="utf-8") for x in files)
    asked = set(re.findall(r'patient\.(?:severity|reports)\(\s*"([^"]+)"', texts))
    assert asked == set(GRAVEST)
    assert {case.partition(": ")[0] for case in GRAVEST} <= set(CATALOGUE)
    assert all(": " in case for case in GRAVEST)


class Mixing(nn.Module):
    """Attention that subtracts the mean of the whole batch from its input."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.q(x - x.mean()), self.k(x), self.v(x)
        return self.o(torch.softmax(q @ k.mT / 4, -1) @ v)


@pytest.mark.parametrize(("released", "severity"), [(False, "bug"), (True, "risk")])
def test_a_convention_is_no_bug_in_an_installed_package(
    released: bool, severity: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Patient, "is_library", released)
    torch.manual_seed(0)
    found = {x.name: x.severity for x in diagnose(Mixing()).findings}
    assert found["batch-mixing"] == severity


def test_no_convention_makes_a_finding_graver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Patient, "is_library", True)
    assert Patient(Mixing()).severity("batch-mixing: in the outputs", "note") == "note"
