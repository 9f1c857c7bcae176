"""The zoo: the specimens are what their labels say, and the doctor finds it out."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import headwise
from tests.doctor.zoo import BROKEN, HEALTHY, SPECIMENS, Specimen
from tests.doctor.zoo.expected import RIGHT
from tests.doctor.zoo.reference import BATCH, LENGTH
from tests.doctor.zoo.signs import SIGNS, numbers, ready
from tests.doctor.zoo.ways import WAYS, way

TOLERANCE = 2e-5  # of an output of size one, in float32

broken = pytest.mark.parametrize("specimen", BROKEN, ids=lambda s: s.name)
healthy = pytest.mark.parametrize("specimen", HEALTHY, ids=lambda s: s.name)
every = pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda s: s.name)


# The specimens themselves.


def test_the_zoo_is_large_enough_and_knows_every_way() -> None:
    assert len(HEALTHY) >= 22
    assert len(BROKEN) >= 44
    assert len({s.name for s in SPECIMENS}) == len(SPECIMENS) == len(RIGHT)
    assert {way(names) for s in BROKEN for names in s.broken} == set(WAYS)
    labelled = {name for s in BROKEN for names in s.broken for name in names}
    assert {name for names in WAYS.values() for name in names} <= labelled


@every
def test_the_code_gives_no_hint(specimen: Specimen) -> None:
    text = inspect.getsource(specimen.source)
    assert not re.search(r"\b(bug|wrong|broken|mistake|fixme|todo|incorrect|should|healthy)\b", text, re.IGNORECASE)
    assert not {name for names in specimen.broken for name in names if name in text.lower()}


@healthy
@pytest.mark.parametrize("seed", [0, 1])
def test_a_healthy_specimen_is_right(specimen: Specimen, seed: int) -> None:
    assert RIGHT[specimen.name].error(ready(specimen.make, seed), seed) < TOLERANCE


@healthy
def test_a_healthy_specimen_trains_in_every_precision(specimen: Specimen) -> None:
    right = RIGHT[specimen.name]
    x, memory, allowed = right.inputs()
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        module = ready(specimen.make).to(dtype)
        out = right.run(module, x.to(dtype), memory.to(dtype), allowed)
        out = out[0] if isinstance(out, tuple) else out
        assert out.dtype == dtype
        out[allowed.any(-1)].float().square().mean().backward()
        assert {n for n, p in module.named_parameters() if p.grad is None or not p.grad.isfinite().all()} == set()


@broken
def test_a_broken_specimen_shows_its_mistake_and_nothing_else(specimen: Specimen, tmp_path: Path) -> None:
    right = RIGHT[specimen.name]
    error = right.error(ready(specimen.make))
    if specimen.name in SIGNS:  # the ordinary output is right
        assert error < TOLERANCE
        assert SIGNS[specimen.name](specimen.make)
    else:
        assert error > 10 * TOLERANCE
    fixed = specimen.fixed(tmp_path)
    if specimen.name in SIGNS:
        assert not SIGNS[specimen.name](fixed)
    if specimen.name != "course.HeadsAttention":  # which, fixed, refuses its sizes
        assert right.error(ready(fixed)) < TOLERANCE


def test_with_two_mistakes_mending_one_is_not_enough(tmp_path: Path) -> None:
    several = [s for s in BROKEN if len(s.broken) > 1]
    assert several
    for specimen in several:
        for pair in specimen.fix:
            half = dataclasses.replace(specimen, fix=(pair,)).fixed(tmp_path)
            assert RIGHT[specimen.name].error(ready(half)) > 10 * TOLERANCE


def test_nearly_all_broken_specimens_train_without_a_word() -> None:
    """The mistakes that are hard to find are those that only make the numbers wrong."""
    silent = 0
    for specimen in BROKEN:
        right = RIGHT[specimen.name]
        x, memory, allowed = right.inputs()
        module = ready(specimen.make).train()
        out = right.run(module, x.clone(), memory.clone(), allowed)
        out = out[0] if isinstance(out, tuple) else out
        if out.requires_grad:
            out.square().mean().backward()
            silent += all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)
    assert silent >= len(BROKEN) - 3  # two cross-attention masks of the wrong length, and one that hides everything


# What the doctor says of them.


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
    assert verdicts(specimen).bugs == []


@broken
def test_the_doctor_finds_no_bug_in_a_mended_specimen(specimen: Specimen, tmp_path: Path) -> None:
    """Another healthy specimen for every broken one; and what names a mistake is not said where there is none."""
    if specimen.name == "course.HeadsAttention":
        pytest.skip("fixed, it refuses its sizes")
    torch.manual_seed(0)
    diagnosis = headwise.diagnose(specimen.fixed(tmp_path)())
    assert [f"{f.name}: {f.evidence}" for f in diagnosis.bugs] == []
    labels = frozenset[str]().union(*specimen.broken)
    assert [f"{f.name}: {f.evidence}" for f in diagnosis.findings if f.name in labels] == []


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


# Keras: its layers are torch modules where it runs on torch.


@pytest.mark.filterwarnings("ignore::DeprecationWarning:keras")
@pytest.mark.parametrize(("name", "bugs"), [("MultiHeadSelfAttention", set()), ("TextAttention", {"wrong-scale"})])
def test_the_doctor_looks_at_keras_layers(name: str, bugs: set[str]) -> None:
    pytest.importorskip("keras")
    from tests.doctor.zoo import keras_layers

    torch.manual_seed(0)
    layer = keras_layers.built(getattr(keras_layers, name)(48))
    expected = keras_layers.formula(layer, numbers(BATCH, LENGTH, 48))
    right = torch.allclose(layer(numbers(BATCH, LENGTH, 48)), expected, atol=1e-5)
    assert right is not bool(bugs)
    assert {f.name for f in headwise.diagnose(layer).bugs} == bugs
