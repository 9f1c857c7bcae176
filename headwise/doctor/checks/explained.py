"""The variant of attention that reproduces the output to rounding, where tracing failed or did not show the mistake."""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotChecked, Patient

FINDINGS = ("wrong-variant", "not-attention")

_FIX = "do this as the definition of attention does; the evidence says what the module does instead"


def check(patient: Patient) -> Iterator[Finding]:
    if patient.anatomy is None and not patient.has_attention:
        yield Finding(
            "not-attention",
            "note",
            patient.anatomy_problem,
            "pass the doctor a module that computes attention",
            patient.where,
        )
        return
    if "projection-zero" in patient.excused:
        raise NotChecked("a projection is 0, so that many variants give the same output")
    fit = patient.fit
    if fit is None:
        raise NotChecked(patient.fit_problem)
    met, missed = f"{fit.error:.0e}", f"{fit.healthy_error:.0e}"
    proof = f"computed this way from its own weights, the output matches to {met}, and by the definition to {missed}"
    numbers = {"error": fit.error, "healthy_error": fit.healthy_error}
    for deviation in fit.deviations:
        if deviation.name in patient.excused:
            continue
        told = deviation.told(fit.numbers)
        severity: Severity = "bug"
        if deviation.convention:
            severity = patient.severity("wrong-variant: a convention", "risk")
        elif fit.alternatives and len(fit.deviations) > 1:
            severity = "risk"
        if deviation.name == "wrong-scale" and fit.projections.kind == "none" and severity == "bug":
            severity = "risk"  # Luong's dot-product attention is not scaled
        yield Finding(deviation.name, severity, f"{told}; {proof}", _FIX, patient.where, numbers=numbers)
    for parameter, wrong in fit.masks.items():
        if wrong is not None and wrong.name not in patient.excused:
            yield Finding(
                wrong.name, "bug", f"`{parameter}`: {wrong.told(fit.numbers)}", _FIX, patient.where, numbers=numbers
            )
