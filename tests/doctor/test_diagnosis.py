"""The door: what the laws say together, causes before symptoms, and what the doctor understood."""

from __future__ import annotations

import functools
import math
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor import diagnose, laws
from headwise.doctor.calling.spec import Spec
from headwise.doctor.catalogue import CATALOGUE
from headwise.doctor.causes import EXPLAINS, settled
from headwise.doctor.finding import Finding, Where
from headwise.doctor.patient import Patient
from headwise.doctor.result import Diagnosis
from headwise.doctor.telling.report import line
from headwise.errors import DtypeError
from tests.doctor.specimens import BEGIN


class Attention(nn.Module):
    """mask: [B, Q, K], True = may attend."""

    def __init__(self, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.heads = heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = self.score(q, k)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], torch.finfo(scores.dtype).min)
        return self.out((self.normalise(scores) @ v).transpose(1, 2).flatten(2))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / math.sqrt(q.shape[-1])

    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)


class TwoMistakes(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return q @ k.mT / self.out.in_features**0.5

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.softmax(scores, dim=-2)


class Forever(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        while True:
            time.sleep(0.01)


class Leaves(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        raise SystemExit(7)


class Warns(Attention):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        warnings.warn("so it goes", stacklevel=1)
        return super().score(q, k)


@pytest.fixture(scope="module")
def healthy() -> Diagnosis:
    return diagnose(Attention())


@pytest.fixture(scope="module")
def broken() -> Diagnosis:
    return diagnose(TwoMistakes())


def test_a_healthy_module_has_no_bugs(healthy: Diagnosis) -> None:
    assert healthy.healthy
    assert healthy.bugs == ()
    assert healthy.subject == "Attention"
    assert healthy.seconds > 0
    assert healthy.where.file == __file__
    assert healthy.where.code == "class Attention(nn.Module):"


def test_what_was_understood(healthy: Diagnosis) -> None:
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
        ("wrong-scale", "return q @ k.mT / self.out.in_features**0.5"),
        ("softmax-axis", "torch.softmax(scores, dim=-2)"),
    ):
        where = by_name[name].where
        assert where.file == __file__
        assert code in where.code
        assert by_name[name].sources  # of the catalogue, where the check has none


def test_the_module_and_the_generator_stay_as_they_were() -> None:
    module = Attention().train()
    before = {name: x.clone() for name, x in module.state_dict().items()}
    state = torch.get_rng_state()
    diagnose(module)
    assert torch.equal(torch.get_rng_state(), state)
    assert module.training
    assert all(torch.equal(x, before[name]) for name, x in module.state_dict().items())


def test_its_warnings_are_kept_from_the_caller() -> None:
    assert diagnose(Warns()).healthy  # (a warning is an error in these tests)


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(
        DtypeError, match=r"module must be an nn.Module. Received: module of type str. Pass an instance"
    ):
        diagnose("attention")  # type: ignore[arg-type]


def test_a_module_that_does_not_end_hangs() -> None:
    diagnosis = diagnose(Forever(), timeout=0.5)
    assert [f.name for f in diagnosis.bugs] == ["hangs"]
    assert "time.sleep" in diagnosis.bugs[0].where.code or "while True" in diagnosis.bugs[0].where.code


class Slow(Forever):
    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.05)  # of 1 s in which it would be said to hang
        return x.softmax(-1) @ x.transpose(1, 2) @ x


def test_many_calls_that_take_long_together_do_not_hang() -> None:
    diagnosis = diagnose(Slow(), timeout=2.0)
    assert "hangs" not in {f.name for f in diagnosis.findings}
    assert "longer than 2 s" in diagnosis.unchecked["the rest"]


def test_a_time_that_ends_before_a_call_is_found() -> None:
    diagnosis = diagnose(Slow(), timeout=0.2)
    assert "longer than 0.2 s, and no way to call it was found" in diagnosis.not_examined
    assert not diagnosis.healthy


class OfTables(nn.Module):
    """Cannot be called: nobody knows its table."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([TwoMistakes(), TwoMistakes()])

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
    """Four tokens become one: no query comes from a single token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(32, 16)
        self.attention = TwoMistakes()

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.pad(x, (0, 0, 0, -x.shape[1] % 2))
        return self.attention(self.patches(x.unflatten(1, (-1, 2)).flatten(2)))


def test_the_parts_of_what_cannot_be_read_are_examined() -> None:
    diagnosis = diagnose(OfPatches())
    assert not diagnosis.not_examined
    assert {"softmax-axis", "wrong-scale"} <= {x.name for x in diagnosis.bugs}
    assert diagnosis.understood[-1] == "its part attention (TwoMistakes) was examined on its own"


def test_a_module_that_ends_the_process_crashes() -> None:
    (bug,) = diagnose(Leaves()).bugs
    assert bug.name == "crashes"
    assert "sys.exit(7)" in bug.evidence


def test_what_is_no_attention_is_a_note() -> None:
    (finding,) = diagnose(nn.Linear(16, 16)).findings
    assert (finding.name, finding.severity) == ("not-attention", "note")


def test_what_is_stated_counts() -> None:
    assert diagnose(TwoMistakes(), spec=Spec(scale=0.25)).bugs
    assert "wrong-scale" not in {f.name for f in diagnose(TwoMistakes(), spec=Spec(scale=0.25)).findings}


# Causes and symptoms.


def made(name: str, severity: str = "bug", line: int = 1) -> Finding:
    return Finding(name, severity, "e", "m", Where("a.py", line))  # type: ignore[arg-type]


def test_a_symptom_of_what_is_named_is_left_out() -> None:
    causes, symptoms = [made("softmax-axis")], [made("batch-mixing"), made("state-dict")]
    assert [f.name for f in settled(causes, symptoms)] == ["softmax-axis", "state-dict"]


def test_what_explains_what() -> None:
    both = settled([made("head-merge")], [made("batch-mixing"), made("causal-leak")])
    assert [f.name for f in both] == ["head-merge", "batch-mixing"]
    cached = settled([], [made("gradient-wrong"), made("cache-mismatch")])
    assert [f.name for f in cached] == ["cache-mismatch"]
    worse = settled([made("causal-leak", "risk")], [made("causal-leak", "bug", 2)])
    assert [f.severity for f in worse] == ["bug", "risk"]


def test_a_risk_explains_no_bug() -> None:
    found = list(settled([made("softmax-axis", "risk")], [made("batch-mixing")]))
    assert [f.name for f in found] == ["batch-mixing", "softmax-axis"]


def test_a_finding_at_one_place_is_said_once() -> None:
    found = list(settled([made("wrong-scale"), made("wrong-scale"), made("wrong-scale", line=2)], []))
    assert [f.where.line for f in found if f.where] == [1, 2]


def test_a_probe_does_not_repeat_what_was_read() -> None:
    assert len(list(settled([made("mask-polarity")], [made("mask-polarity", line=9)]))) == 1


def test_own_sources_come_before_the_catalogues() -> None:
    found = list(settled([Finding("wrong-scale", "bug", "e", "m", sources=("mine",))], [made("state-dict")]))
    assert found[0].sources == ("mine",)


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


class Compiles(Attention):
    """Its first call compiles a function."""

    def normalise(self, scores: Tensor) -> Tensor:
        return torch.compile(functools.partial(torch.softmax, dim=-2))(scores)


def test_compiled_code_is_read_as_it_is_written() -> None:
    made = torch.compile
    assert "softmax-axis" in {x.name for x in diagnose(Compiles()).bugs}
    assert torch.compile is made


# What the doctor understood.


def test_an_attention_that_is_written_out_and_shares_key_heads() -> None:
    class Grouped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.num_heads, self.num_kv_heads = 4, 2
            self.q, self.o, self.k, self.v = (nn.Linear(16, w) for w in (16, 16, 8, 8))

        def forward(self, x: Tensor) -> Tensor:
            b, n, _ = x.shape
            q = self.q(x).view(b, n, 4, 4).transpose(1, 2)
            k, v = (f(x).view(b, n, 2, 4).transpose(1, 2).repeat_interleave(2, 1) for f in (self.k, self.v))
            e = (q @ k.mT * 0.3).exp()
            return self.o((e / e.sum(-1, keepdim=True) @ v).transpose(1, 2).reshape(b, n, 16))

    said = "\n".join(Patient(Grouped()).understood())
    assert (
        "4 heads of width 4, 2 of keys and values, scores times 0.3000, softmax computed from basic operations" in said
    )
    assert "1/sqrt" not in said


def test_several_sites_that_are_alike_are_one_line() -> None:
    layer = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2, enable_nested_tensor=False
    )
    lines = [line for line in Patient(layer).understood() if line.startswith("attention at")]
    assert len(lines) == 1
    assert lines[0].endswith("(seen 2 times)")


def test_where_nothing_could_be_read_that_is_said() -> None:
    patient = Patient(nn.Linear(8, 8))
    assert patient.evidence() == ""
    assert patient.understood()
    assert "its operations could not be traced: there is no softmax" in patient.evidence()


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


class WithImagesOverTheQueries(WithImages):
    over = 1


def test_a_second_memory_that_a_call_may_leave_out() -> None:
    torch.manual_seed(0)
    found = headwise.diagnose(WithImagesOverTheQueries()).findings
    assert [(x.name, x.severity) for x in found if x.severity == "bug"] == [("softmax-axis", "bug")]
    assert "called with image_context" in found[0].evidence
    assert not [x for x in headwise.diagnose(WithImages()).findings if x.severity == "bug"]


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
    found = headwise.diagnose(OfHeads())
    assert any("its part scores (Scores) was examined on its own" in line for line in found.understood)
    assert not [x for x in found.findings if x.name in ("wrong-scale", "mask-ignored")]
