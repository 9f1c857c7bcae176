"""Keys that come from no token because the module pads its input to whole blocks: they must have no weight.

Learned keys (sinks, registers) have a weight with every length. Padding has one only with lengths that are not a
multiple of the block. Zeros before the first block have a weight with every length, for the first queries alone, and
so have the places of a cache that are still empty, several for each query.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.anatomy import Anatomy, look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = ("padding-attended",)

_LENGTHS = (5, 6, 7, 8, 16)


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self":
        raise NotApplicable("its queries and keys are not one sequence")
    site = next((x for x in patient.see().sites if x.weight_of_constants() > 0), None)
    if site is None:
        return
    given = site.weight_of_constants()
    for length in () if patient.interface.length else _LENGTHS:
        try:
            others = look(patient, length=length).sites
        except Exception:  # it does not take this length
            continue
        if others and all(_without(x) for x in others):
            yield Finding(
                "padding-attended",
                patient.severity("padding-attended: of blocks", "bug"),
                f"with 5 tokens a query gives up to {given:.2g} of its weight to keys that come from no token, and "
                f"with {length} tokens none: the padding to whole blocks is attended to",
                "mask the keys that were padded: their scores are -inf before the softmax",
                site.softmax.where,
                numbers={"weight": given},
            )
            return
    yield from _before_the_first(patient)


def _before_the_first(patient: Patient) -> Iterator[Finding]:
    """Whether some queries give weight to keys of zeros, whose scores are all alike, and others to none; or some to
    several. A single one is added on purpose (`add_zero_attn`).
    """
    found = _seen(patient)
    if found is None:
        return
    for site in found.sites:
        given, scores = site.given_to_constants()
        some = given > 0
        if len(scores) and float(scores[0]) < FORBIDDEN:  # all keys of a row are masked
            continue
        several = len(scores) > int(some.sum())
        if bool(some.any()) and (several or not bool(some.all())) and bool((scores == scores[0]).all()):
            length, rows, of = found.inputs.key_length, int(some.sum()), len(some)
            most = float(given.amax())
            yield Finding(
                "padding-attended",
                patient.severity("padding-attended: of blocks", "bug"),
                f"with {length} tokens {rows} of {of} rows of weights give up to {most:.2g} of their weight to "
                "several keys of zeros that come from no token: what was padded, such as empty places of a cache, is "
                "attended to"
                if several
                else f"with {length} tokens {rows} of {of} rows of weights give up to {most:.2g} of their weight "
                "to keys of zeros that come from no token, and the others none: what was padded, such as the block "
                "before the first one, is attended to",
                "mask the keys that were padded: their scores are -inf before the softmax",
                site.softmax.where,
                numbers={"weight": most},
            )
            return


def _seen(patient: Patient) -> Anatomy | None:
    """It with many tokens, or else with few; None if it takes neither."""
    for length in (patient.interface.length or _LENGTHS[-1], _LENGTHS[0]):
        with contextlib.suppress(Exception):  # it does not take this length
            return look(patient, length=length)
    return None


def _without(site: Site) -> bool:
    return site.weight_of_constants() == 0
