"""Keys that come from no token because the module pads its input to whole blocks: they must have no weight.

Learned keys (sinks, registers) have a weight with every length. Padding has one only with lengths that are not a
multiple of the block. Zeros before the first block have a weight with every length, for the first queries alone, and
so have the places of a cache that are still empty, several for each query.
"""

from __future__ import annotations

from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site
from headwise.language import Sentence

FINDINGS = ("padding-attended",)

_LENGTHS = (5, 6, 7, 8, 16)


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self":
        raise NotApplicable("its queries and keys are not one sequence")
    site = next((x for x in patient.see().sites if x.weight_of_constants() > 0), None)
    if site is None:
        return
    for length in () if patient.interface.length else _LENGTHS:
        others = _seen(patient, length)
        if others is not None and others.sites and all(x.weight_of_constants() == 0 for x in others.sites):
            evidence = Sentence(
                "with 5 tokens a query gives up to {weight:.2g} of its weight to keys that come from no token, and "
                "with {length} tokens none: the padding to whole blocks is attended to"
            ).format(weight=site.weight_of_constants(), length=length)
            yield _attended(patient, site, evidence)
            return
    yield from _zeros(patient)


def _zeros(patient: Patient) -> Iterator[Finding]:
    """Whether some queries give weight to keys of zeros, whose scores are all alike, and others to none; or some to
    several. A single one is added on purpose (`add_zero_attn`).
    """
    found = _seen(patient, patient.interface.length or _LENGTHS[-1]) or _seen(patient, _LENGTHS[0])
    for site in () if found is None else found.sites:
        given, scores = site.given_to_constants()
        some = given > 0
        if len(scores) and float(scores[0]) < FORBIDDEN:  # all keys of a row are masked
            continue
        several = len(scores) > int(some.sum())
        if bool(some.any()) and (several or not bool(some.all())) and bool((scores == scores[0]).all()):
            evidence = Sentence(
                "{rows} of {of} rows of weights give up to {weight:.2g} of their weight to keys of zeros that come "
                "from no token: what was padded, such as the block before the first one or empty places of a cache, is "
                "attended to"
            ).format(rows=int(some.sum()), of=len(some), weight=float(given.amax()))
            yield _attended(patient, site, evidence)
            return


def _attended(patient: Patient, site: Site, evidence: str) -> Finding:
    return Finding(
        "padding-attended",
        patient.severity("padding-attended: of blocks", "bug"),
        evidence,
        "mask the keys that were padded: their scores are -inf before the softmax",
        site.softmax.where,
    )


def _seen(patient: Patient, length: int) -> Anatomy | None:
    try:
        return look(patient, length=length)
    except Exception:  # it does not take this length
        return None
