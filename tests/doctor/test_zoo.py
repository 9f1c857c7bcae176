"""What the doctor says of the zoo: every mistake is named, none where there is none, and what is right is explained."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

import headwise
from tests.doctor.zoo import BROKEN, HEALTHY, SPECIMENS, Specimen
from tests.doctor.zoo.ways import WAYS, way


def slow_unless(quick: Callable[[Specimen], bool], specimens: Sequence[Specimen]) -> pytest.MarkDecorator:
    cases = [pytest.param(s, marks=() if quick(s) else pytest.mark.slow) for s in specimens]
    return pytest.mark.parametrize("specimen", cases, ids=lambda s: s.name)


# Quick: for each finding the first broken specimen; for every second finding also the same specimen with its bug fixed.
FIRST = {name: s.name for s in reversed(BROKEN) for names in s.broken for name in names}
broken = slow_unless(lambda s: s.name in FIRST.values(), BROKEN)
fixed = slow_unless(lambda s: s.name in list(FIRST.values())[::2], BROKEN)
healthy = slow_unless(lambda s: s in HEALTHY[::2], HEALTHY)
every = pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda s: s.name)


def test_the_zoo_is_large_enough_and_knows_every_way() -> None:
    assert len(HEALTHY) >= 22
    assert len(BROKEN) >= 44
    assert len({s.name for s in SPECIMENS}) == len(SPECIMENS)
    assert {way(names) for s in BROKEN for names in s.broken} == set(WAYS)
    labelled = {name for s in BROKEN for names in s.broken for name in names}
    assert {name for names in WAYS.values() for name in names} <= labelled


@every
def test_the_code_gives_no_hint(specimen: Specimen) -> None:
    text = inspect.getsource(specimen.source)
    assert not re.search(r"\b(bug|wrong|broken|mistake|fixme|todo|incorrect|should|healthy)\b", text, re.IGNORECASE)
    assert not {name for names in specimen.broken for name in names if name in text.lower()}


@dataclasses.dataclass(frozen=True)
class Verdict:
    findings: dict[str, str]  # name -> severity
    bugs: list[str]  # name: evidence


Verdicts = Callable[[Specimen], Verdict]


@pytest.fixture(scope="session")
def verdicts(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """Each specimen is diagnosed once, whichever of the test processes comes to it first."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "verdicts"
    folder.mkdir(exist_ok=True)

    def verdict(specimen: Specimen) -> Verdict:
        file = folder / f"{specimen.name}.json"
        if not file.exists():
            torch.manual_seed(0)
            diagnosis = headwise.diagnose(specimen.make())
            findings = {f.name: f.severity for f in reversed(diagnosis.findings)}
            bugs = [f"{f.name}: {f.evidence}" for f in diagnosis.bugs]
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps([findings, bugs]), encoding="utf-8")
            part.rename(file)
        return Verdict(*json.loads(file.read_text(encoding="utf-8")))

    return verdict


@broken
def test_the_doctor_names_every_mistake(specimen: Specimen, verdicts: Verdicts) -> None:
    found = verdicts(specimen)
    missed = [sorted(names) for names in specimen.broken if not names & set(found.findings)]
    assert not missed, f"{specimen.why}; found {found.findings}"


@healthy
def test_the_doctor_finds_no_bug_in_a_healthy_specimen(specimen: Specimen, verdicts: Verdicts) -> None:
    found = verdicts(specimen)
    assert found.bugs == []


@fixed
def test_the_doctor_finds_no_bug_in_a_fixed_specimen(specimen: Specimen, tmp_path: Path) -> None:
    """Another healthy specimen for every broken one; and what names a mistake is not said where there is none."""
    if specimen.name == "course.HeadsAttention":
        pytest.skip("fixed, it refuses its sizes")
    torch.manual_seed(0)
    diagnosis = headwise.diagnose(specimen.fixed(tmp_path)())
    assert [f"{f.name}: {f.evidence}" for f in diagnosis.bugs] == []
    labels = frozenset[str]().union(*specimen.broken)
    assert [f"{f.name}: {f.evidence}" for f in diagnosis.findings if f.name in labels] == []


@pytest.mark.slow
def test_the_confusion_table(verdicts: Verdicts, record_property: Callable[[str, object], None]) -> None:
    """Rows: the ways. Columns: how many mistakes were named, how many missed, and what other bugs were reported.

    tests/conftest.py prints it at the end of the run.
    """
    named, missed = Counter[str](), Counter[str]()
    otherwise: dict[str, Counter[str]] = {row: Counter() for row in WAYS}
    for specimen in BROKEN:
        found = verdicts(specimen)
        labels = frozenset[str]().union(*specimen.broken)
        for names in specimen.broken:
            (named if names & set(found.findings) else missed)[way(names)] += 1
            otherwise[way(names)].update(
                name for name, severity in found.findings.items() if severity == "bug" and name not in labels
            )
    false = Counter(bug.partition(":")[0] for specimen in HEALTHY for bug in verdicts(specimen).bugs)
    lines = [f"{'way':26}{'named':>6}{'missed':>8}  named otherwise"]
    for row in WAYS:
        said = ", ".join(f"{name} {count}" for name, count in otherwise[row].most_common())
        lines.append(f"{row:26}{named[row]:6}{missed[row]:8}  {said}".rstrip())
    lines.append(f"{'all':26}{named.total():6}{missed.total():8}")
    said = ", ".join(f"{name} {count}" for name, count in false.most_common())
    lines.append(f"{'healthy':26}{len(HEALTHY):6}{'':8}  {said or 'no bug reported'}")
    record_property("table", "\n".join(lines))
    assert named.total() >= 0.95 * (named.total() + missed.total())
