"""What is said about a mask against what a trial of it shows, where the scores cannot be read.

Where they can, `mask_cells` compares the same with what the mask does to each of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from headwise.doctor.calling.interface import MaskInput
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient

FINDINGS = ("mask-polarity", "mask-added")


def check(patient: Patient) -> Iterator[Finding]:
    if patient.anatomy is not None:
        raise NotApplicable("its scores can be read")
    for mask in one_each([m for m in patient.interface.masks if not m.own]):
        yield from added(patient, mask) if said_to_hold_0_and_1(mask) else otherwise_stated(patient, mask)


def one_each(masks: list[MaskInput]) -> Iterator[MaskInput]:
    """The best form of every argument."""
    seen = set()
    for mask in sorted(masks, key=lambda m: not m.works):
        if mask.parameter not in seen:
            seen.add(mask.parameter)
            yield mask


def otherwise_stated(patient: Patient, mask: MaskInput) -> Iterator[Finding]:
    """Documentation that states another polarity than the one found by trial."""
    if not mask.works or mask.claimed in (None, mask.form, "additive") or mask.form == "additive":
        return
    yield Finding(
        "mask-polarity",
        "risk" if ambiguous(mask) else "bug",
        f"{quoted(mask.claim)} says that True in `{mask.parameter}` = {means(mask.claimed)}; in the module True "
        f"= {means(mask.form)}",
        f"invert the mask where it is applied (~{mask.parameter}), or correct the documentation",
        patient.where,
    )


def said_to_hold_0_and_1(mask: MaskInput) -> bool:
    """Whether trial says that the mask is added, while documentation (not only a name) says something else."""
    said = mask.works and mask.form == "additive" and mask.claimed in ("allowed", "forbidden")
    if said and re.search(r"\bbool", mask.claim):
        return True  # whether or not it may also be added
    return said and not re.search(r"the name |inf\b|additive|\badded", mask.claim)


def added(patient: Patient, mask: MaskInput) -> Iterator[Finding]:
    yield Finding(
        "mask-added",
        "bug",
        f"{mask.claim!r} says that 1 in `{mask.parameter}` = {means(mask.claimed)}, and the module adds it to the "
        "scores as it is: 0 and 1 mask nothing",
        "use masked_fill(mask, -inf), or add 0 and -inf",
        patient.where,
    )


def ambiguous(mask: MaskInput) -> bool:
    """Whether only a name such as padding_mask says so: 1 = padding in some libraries, a real token in Keras."""
    return mask.claim.startswith("the name ") and "key_padding_mask" not in mask.parameter


def quoted(claim: str) -> str:
    return claim if claim.startswith("the name ") else repr(claim)


def means(form: str | None) -> str:
    return "may attend" if form == "allowed" else "forbidden"
