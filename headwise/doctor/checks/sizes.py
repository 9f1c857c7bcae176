"""Whether it runs with other sizes: length 1, odd and longer lengths, a batch of 1, more keys than queries."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import Probe, sentence

FINDINGS = ("sizes-fixed",)

_NEGATIVE = re.compile(r"index -\d+ is out of bounds")
_CLAMPED = re.compile(r"\b(clamp|clip|minimum)_?\(")
_LENGTHS = (1, 2, 4, 7, 12, 33, 64)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    probe.answers(probe.inputs())
    if probe.interface.length is not None:
        yield _finding(
            "note",
            f"it runs with {probe.interface.length} tokens and with no other length that was tried",
            "nothing, if every input has this length; else take the length from the input",
            {"length": probe.interface.length},
        )
    if probe.interface.batched:
        yield from _batches(probe)
    if probe.interface.length is None:
        yield from _lengths(probe)
    if probe.crosses and not probe.rectangular and not probe.interface.causal_claim:  # else it needs the same positions
        queries = probe.inputs().query.shape[1]
        problems = ((more, probe.attempt(probe.interface.inputs(None, None, queries + more))) for more in (2, 16))
        more, problem = next((x for x in problems if isinstance(x[1], Exception)), (2, None))
        if not isinstance(problem, Exception):
            return
        yield _finding(
            patient.severity("sizes-fixed: more keys than queries", "bug")
            if probe.interface.takes == "memory" and names.role(dict(probe.interface.way.slots)["memory"]) == "memory"
            else patient.severity("sizes-fixed: queries, keys and values", "risk"),
            f"with {more} more keys than queries it raises {sentence(problem)}",
            "take the length of keys and values from the keys, not from the queries",
            {},
        )


def _batches(probe: Probe) -> Iterator[Finding]:
    usual = probe.interface.batch
    others = {n: probe.attempt(probe.inputs(batch=n)) for n in (1, 2, 4) if n != usual}
    failed = {n: out for n, out in others.items() if isinstance(out, Exception)}
    if failed:
        n = next(iter(failed))
        alone = list(failed) == [1]
        yield _finding(
            "bug" if alone else "risk",
            f"it runs with a batch of {usual}, and raises with a batch of {' or '.join(map(str, failed))}: "
            f"{sentence(failed[n])}",
            "squeeze() needs a dimension, or it drops a batch of 1" if alone else "take the batch size from the input",
            {"batch": n},
        )


def _lengths(probe: Probe) -> Iterator[Finding]:
    ran = {n: probe.attempt(probe.inputs(length=n)) for n in _LENGTHS}
    failed = {n: out for n, out in ran.items() if isinstance(out, Exception)}
    if all(isinstance(out := ran[n], Tensor) and out.shape[1] == n - 1 for n in (2, 4)):
        failed.pop(1, None)  # the first token is only a start: one alone has no row
    if not failed:
        return
    works = sorted({5, *(n for n in ran if n not in failed)})
    first = min(failed)
    severity: Severity = "risk"
    fix = "take lengths from the input; pad to a multiple where blocks are needed"
    if works == [5]:
        evidence = f"it runs with 5 tokens and with none of {', '.join(map(str, failed))}: {sentence(failed[first])}"
    elif first > max(works):
        severity = "note"
        evidence = f"it runs with up to {max(works)} tokens, and raises with {first}: {sentence(failed[first])}"
        fix = "nothing, if so many tokens are never needed; else make its table or mask larger"
        if _NEGATIVE.search(str(failed[first])) and any(
            _CLAMPED.search(text_of(part)) for part in probe.module.modules()
        ):
            severity = "bug"
            evidence += ". It limits its indices, and not from below: negative ones, which it meets with fewer "
            evidence += "tokens, read the table from its end"
            fix = "clamp on both sides: distance.clamp(-max, max) + max"
    elif list(failed) == [1]:
        severity = "bug"
        evidence = f"it raises with one token: {sentence(failed[1])}"
        fix = "squeeze() needs a dimension, or it drops a length of 1"
    else:
        evidence = (
            f"it runs with {', '.join(map(str, works))} tokens, and raises with {', '.join(map(str, failed))}: "
            f"{sentence(failed[first])}"
        )
    yield _finding(severity, evidence, fix, {"length": first})


def _finding(severity: Severity, evidence: str, fix: str, numbers: dict[str, float]) -> Finding:
    return Finding("sizes-fixed", severity, evidence, fix, numbers=numbers)
