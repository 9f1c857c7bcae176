"""The variant of attention that reproduces the output to rounding, where the operations could not be read or hid
something.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding, Severity
from headwise.doctor.patient import NotChecked, Patient

FINDINGS = ("wrong-variant", "not-attention")

_MEND = "decide this as the definition does; the sentence says what the module does in its place"


def check(patient: Patient) -> Iterator[Finding]:
    if patient.anatomy is None and not patient.has_attention:
        yield Finding(
            "not-attention",
            "note",
            patient.anatomy_problem,
            "give the doctor a module that computes attention",
            patient.where,
        )
        return
    fit = patient.fit
    if fit is None:
        raise NotChecked(patient.fit_problem)
    met, missed = f"{fit.error:.0e}", f"{fit.healthy_error:.0e}"
    proof = f"so computed from its own weights the output is met within {met}, as defined within {missed}"
    numbers = {"error": fit.error, "healthy_error": fit.healthy_error}
    for deviation in fit.deviations:
        if deviation.name in patient.excused:
            continue
        told = deviation.told(fit.numbers)
        severity: Severity = "note" if deviation.convention and patient.is_library else "bug"
        if severity == "bug" and (deviation.convention or (fit.alternatives and len(fit.deviations) > 1)):
            severity = "risk"
        yield Finding(deviation.name, severity, f"{told}; {proof}", _MEND, patient.where, numbers=numbers)
    for parameter, wrong in fit.masks.items():
        if wrong is not None:
            yield Finding(
                wrong.name, "bug", f"`{parameter}`: {wrong.told(fit.numbers)}", _MEND, patient.where, numbers=numbers
            )
