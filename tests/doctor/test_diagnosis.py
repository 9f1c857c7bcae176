"""The door: what the laws say together, causes before symptoms, and what the doctor understood."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor import diagnose, laws
from headwise.doctor.calling.spec import Spec
from headwise.doctor.catalogue import CATALOGUE, GRAVEST
from headwise.doctor.causes import EXPLAINS, settled
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.result import Diagnosis
from headwise.doctor.telling.report import line
from headwise.errors import DtypeError
from tests.doctor.laws.specimens import Attention, altered, seeded
from tests.doctor.laws.styles import Masked
from tests.doctor.specimens import BEGIN


def _by_the_width(self: Any, q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT / self.width**0.5


def _over_the_queries(self: Any, scores: Tensor) -> Tensor:
    return torch.softmax(scores, dim=-2)


class TwoMistakes(Attention):
    score = _by_the_width
    normalise = _over_the_queries


@pytest.fixture(scope="module")
def healthy() -> Diagnosis:
    return diagnose(Masked())


@pytest.fixture(scope="module")
def broken() -> Diagnosis:
    return diagnose(seeded(TwoMistakes))


def test_a_healthy_module_has_no_bugs(healthy: Diagnosis) -> None:
    assert healthy.healthy
    assert (healthy.subject, healthy.bugs) == ("Masked", ())
    assert healthy.seconds > 0
    assert healthy.where.code == "class Masked(Attention):"
    said = "\n".join(healthy.understood)
    assert "forward(x, mask): one input" in said
    assert "mask [B, Q, K], True = may attend" in said
    assert "4 heads of width 4, scores times 0.5000 = 1/sqrt(4)" in said


def test_every_mistake_is_named_once_bugs_first(broken: Diagnosis) -> None:
    assert not broken.healthy
    assert {f.name for f in broken.bugs} == {"wrong-scale", "softmax-axis"}
    names = [f.name for f in broken.findings]
    assert len(set(names)) == len(names)
    severities = [["bug", "risk", "note"].index(f.severity) for f in broken.findings]
    assert severities == sorted(severities)
    by_name = {f.name: f for f in broken.findings}
    for name, code in (
        ("wrong-scale", "return q @ k.mT / self.width**0.5"),
        ("softmax-axis", "torch.softmax(scores, dim=-2)"),
    ):
        where = by_name[name].where
        assert where.file == __file__
        assert code in where.code
        assert by_name[name].sources  # of the catalogue, where the check has none


class Slow(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.05)  # of 1 s in which it would be said to hang
        return x.softmax(-1) @ x.transpose(1, 2) @ x


def test_many_calls_that_take_long_together_do_not_hang() -> None:
    diagnosis = diagnose(Slow(), timeout=2.0)
    assert "hangs" not in {f.name for f in diagnosis.findings}
    assert "longer than 2 s" in diagnosis.unchecked["the rest"]
    diagnosis = diagnose(Slow(), timeout=0.2)
    assert "longer than 0.2 s, and no way to call it was found" in diagnosis.not_examined
    assert not diagnosis.healthy


class OfTables(nn.Module):
    """Cannot be called: nobody knows its table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([seeded(TwoMistakes), TwoMistakes()])

    def forward(self, x: Tensor, table: dict[str, Tensor]) -> Tensor:
        for layer in self.layers:
            x = layer(x) * table["scale"]
        return x


def test_the_parts_of_what_cannot_be_called_are_examined() -> None:
    diagnosis = diagnose(OfTables())
    assert diagnosis.not_examined.startswith("OfTables.forward(x, table): no way to call it was found")
    assert [x.name for x in diagnosis.bugs] == ["softmax-axis", "wrong-scale"]
    assert all(x.evidence.startswith("in its part layers.0: ") for x in diagnosis.findings)
    assert diagnosis.understood == ("its part layers.0 (TwoMistakes) was examined on its own",)
    assert "Fix softmax-axis" in str(diagnosis)
    listed = line(diagnosis, "mine.py:OfTables")
    assert listed.startswith("mine.py:OfTables: 2 bugs: softmax-axis, wrong-scale; not examined: OfTables.forward")


class OfPatches(nn.Module):
    """Two tokens become one: no query comes from a single token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.attention = nn.Linear(32, 16), seeded(TwoMistakes)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 2))
        return self.attention(self.patches(x.unflatten(1, (-1, 2)).flatten(2)))


def test_the_parts_of_what_cannot_be_read_are_examined() -> None:
    diagnosis = diagnose(OfPatches())
    assert {"softmax-axis", "wrong-scale"} <= {x.name for x in diagnosis.bugs}
    assert diagnosis.understood[-1] == "its part attention (TwoMistakes) was examined on its own"


def test_what_is_no_attention_is_a_note_and_what_is_no_module_is_refused() -> None:
    (finding,) = diagnose(nn.Linear(16, 16)).findings
    assert (finding.name, finding.severity) == ("not-attention", "note")
    assert "its operations could not be traced: there is no softmax" in diagnose(nn.Linear(8, 8)).evidence
    with pytest.raises(DtypeError, match=r"module must be an nn.Module. Received: module of type str. Pass an inst"):
        diagnose("attention")  # type: ignore[arg-type]


def _warns(self: Any, scores: Tensor) -> Tensor:
    warnings.warn("so it goes", stacklevel=1)
    e = (scores - scores.amax(-1, keepdim=True)).exp()
    return e / e.sum(-1, keepdim=True)


def test_warnings_are_kept_from_the_caller_and_what_is_stated_counts() -> None:
    """(A warning is an error in these tests.)"""
    found = diagnose(altered(score=lambda self, q, k: q @ k.mT * 0.3, normalise=_warns), spec=Spec(scale=0.3))
    assert found.healthy
    assert "4 heads of width 4, scores times 0.3000, softmax computed from basic" in "\n".join(found.understood)


# Causes and symptoms.


def made(name: str, severity: str = "bug", line: int = 1) -> Finding:
    return Finding(name, severity, "e", "m", Where("a.py", line))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("causes", "symptoms", "left"),
    [
        ([made("softmax-axis")], [made("batch-mixing"), made("state-dict")], ["softmax-axis", "state-dict"]),
        ([made("head-merge")], [made("batch-mixing"), made("causal-leak")], ["head-merge", "batch-mixing"]),
        ([], [made("gradient-wrong"), made("cache-mismatch")], ["cache-mismatch"]),
        ([made("softmax-axis", "risk")], [made("batch-mixing")], ["batch-mixing", "softmax-axis"]),
        ([made("causal-leak", "risk")], [made("causal-leak", "bug", 2)], ["causal-leak", "causal-leak"]),
        ([made("wrong-scale"), made("wrong-scale"), made("wrong-scale", line=2)], [], ["wrong-scale"] * 2),
        ([made("mask-polarity")], [made("mask-polarity", line=9)], ["mask-polarity"]),  # as it was read
    ],
)
def test_what_is_reported_of_causes_and_symptoms(
    causes: list[Finding], symptoms: list[Finding], left: list[str]
) -> None:
    assert [f.name for f in settled(causes, symptoms)] == left


# The laws.

OF_THE_DIAGNOSIS = {"crashes", "does-not-run", "hangs", "not-attention", "too-large"}  # no law names these


def test_every_law_is_listed() -> None:
    listed = laws.SOURCE | laws.READ | laws.PROBED
    assert {path.stem for path in Path(laws.__file__).parent.glob("*.py")} - {"__init__"} == set(listed)
    said = {finding for law in listed.values() for finding in law.FINDINGS}
    assert said | OF_THE_DIAGNOSIS == set(CATALOGUE)


def test_torchs_compiler_stays_unread() -> None:
    """Its import, and that of sympy, take more time than a diagnosis; so does torch, where another process has it."""
    program = (
        "import sys, headwise.doctor.targets.isolate; assert 'torch' not in sys.modules"
        f"{BEGIN}\n"
        "import headwise; assert headwise.diagnose(Healthy()).healthy\n"
        "assert not {'torch._dynamo', 'sympy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_compiled_code_is_read_as_it_is_written() -> None:
    compiler = torch.compile
    module = altered(normalise=lambda self, x: torch.compile(functools.partial(torch.softmax, dim=-2))(x))
    assert "softmax-axis" in {x.name for x in diagnose(module).bugs}
    assert torch.compile is compiler


# Released code.


def test_every_case_of_released_code_is_of_a_known_finding_and_asked_by_a_law() -> None:
    package = Path(laws.__file__).parent
    files = (*package.glob("*.py"), package.parent / "diagnosis.py")
    texts = "".join(x.read_text(encoding="utf-8") for x in files)
    assert set(re.findall(r'patient\.(?:severity|reports)\(\s*"([^"]+)"', texts)) == set(GRAVEST)
    assert {case.partition(": ")[0] for case in GRAVEST} <= set(CATALOGUE)


def test_a_convention_is_no_bug_in_an_installed_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the mean of the whole batch is taken off; and a note stays a note."""
    mixing = altered(forward=lambda self, x: self.attend(x - x.mean(), x, None))
    assert {x.name: x.severity for x in diagnose(mixing).findings}["batch-mixing"] == "bug"
    monkeypatch.setattr(Patient, "is_library", True)
    assert {x.name: x.severity for x in diagnose(mixing).findings}["batch-mixing"] == "risk"
    assert Patient(mixing).severity("batch-mixing: in the outputs", "note") == "note"


# What the doctor understood.


def test_the_table_of_symptoms_speaks_of_findings_that_there_are() -> None:
    named = set(EXPLAINS).union(*EXPLAINS.values())
    assert named <= set(CATALOGUE), named - set(CATALOGUE)
    # Two that explain each other would both be left out.
    mutual = [(a, b) for a, symptoms in EXPLAINS.items() for b in symptoms if a in EXPLAINS.get(b, ())]
    assert not mutual


class WithImages(nn.Module):
    """x: (b, n, dim) queries; context: (b, m, dim) text; image_context: (b, l, dim) an image, which may be left out"""

    over = -1

    def __init__(self, dim: int = 32) -> None:
        super().__init__()
        self.q, self.k, self.v, self.k_image, self.v_image = (nn.Linear(dim, dim) for _ in range(5))

    def forward(self, x: Tensor, context: Tensor, image_context: Tensor | None = None) -> Tensor:
        q = self.q(x) / x.shape[-1] ** 0.5
        out = (q @ self.k(context).mT).softmax(-1) @ self.v(context)
        if image_context is not None:
            out = out + (q @ self.k_image(image_context).mT).softmax(self.over) @ self.v_image(image_context)
        return out


def test_a_second_memory_that_a_call_may_leave_out() -> None:
    (bug,) = diagnose(altered(WithImages, over=1)).bugs
    assert bug.name == "softmax-axis"
    assert "called with image_context" in bug.evidence
    assert not diagnose(seeded(WithImages)).bugs


class Scores(nn.Module):
    """q, k, v: [B, H, N, 4]; their width is known to whoever made it. mask: -1 hides."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = 4**0.5

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = q @ k.mT / self.temperature
        return (scores if mask is None else scores.masked_fill(mask == -1, -1e9)).softmax(-1) @ v


class OfHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix, self.scores = nn.Conv1d(16, 16, 3, padding=1), Scores()

    def forward(self, x: Tensor) -> Tensor:
        q = self.mix(x.mT).mT.unflatten(-1, (4, 4)).transpose(1, 2)
        return x + self.scores(q, q, q).transpose(1, 2).flatten(2)


def test_a_part_is_called_as_the_whole_calls_it() -> None:
    found = diagnose(OfHeads())
    assert any("its part scores (Scores) was examined on its own" in line for line in found.understood)
    assert not [x for x in found.findings if x.name in ("wrong-scale", "mask-ignored")]
