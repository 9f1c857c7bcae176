"""Windows at the wrong place: they wrap around the sequence, see one key of the next chunk, or keep the oldest tokens.

Which keys have a weight is read from the softmax, without a mask. Neighbours that torch.roll brings come from the other
end of the sequence at its borders; a window without a wrap has fewer keys there. A limited memory of the past ends
right before the tokens that read it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.site import Site

FINDINGS = ("window-wraps", "window-off-by-one", "oldest-kept")

_CHUNK = re.compile(r"(^|_)(chunk|block|segment)(_?(size|len|length|width))?$", re.IGNORECASE)
_ROUND = re.compile(r"circular|cyclic|periodic|tor(us|oid)|\bring\b|wrap", re.IGNORECASE)
_LATER = re.compile(r"right|ahead|future|next|overlap", re.IGNORECASE)
_PAST = re.compile(
    r"left_?(context|chunks?|frames?)|history|(mem(ory)?|cache)_?(len|size|length)|max_cache", re.IGNORECASE
)
_FAR = re.compile(r"sink|global|dilat|strid|landmark|anchor|sparse", re.IGNORECASE)  # it skips tokens on purpose
_LENGTH, _LONGEST = 16, 256


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes != "self":
        raise NotApplicable("its queries and keys are not one sequence")
    chunk = _size(patient, _CHUNK)
    length = patient.interface.length or max(_LENGTH, 4 * chunk)
    if length > _LONGEST or not patient.see().sites:
        raise NotApplicable("it has no attention, or of a sequence that is too long to look at every pair")
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(f"it does not run with {length} tokens: {type(error).__name__}") from None
    text = text_of(patient.module)
    if _size(patient, _PAST) and not _FAR.search(text):
        yield from _oldest(sites, length)
    for site in sites:
        seen = site.attended(length) > 0
        if not bool(seen.diagonal().all()) or bool(seen.all()):
            continue
        if not _ROUND.search(text):
            yield from _wraps(site, seen)
        if 1 < chunk < length and not _LATER.search(text):
            yield from _next_chunk(site, seen, chunk)
        return


def _size(patient: Patient, named: re.Pattern[str]) -> int:
    """The size that an attribute of this name tells, such as that of its chunks; else 0."""
    parts = (vars(part) for part in patient.module.modules())
    found = (x for part in parts for name, x in part.items() if named.search(name) and type(x) is int)
    return next(found, 0)


def _oldest(sites: Sequence[Site], length: int) -> Iterator[Finding]:
    """Whether the last query sees its own chunk and older tokens, and none of those between."""
    lines = {site.softmax.where: site for site in sites}  # a loop over chunks has an attention for each
    for where, site in lines.items():
        seen = torch.stack([x.attended(length)[-1] > 0 for x in sites if x.softmax.where == where]).any(0)
        unseen = (~seen).nonzero()[:, 0]
        if not bool(seen[-1]) or not len(unseen):
            continue
        own = int(unseen[-1]) + 1  # the first of the keys next to the query
        if bool(seen[:own].any()):
            yield Finding(
                "oldest-kept",
                "bug",
                f"of {length} tokens the last attends to {_runs(seen)}: it keeps old tokens, and not those right "
                "before its chunk",
                "keep the latest tokens: cache[:, -size:], not cache[:, :size]",
                site.softmax.where,
                numbers={"tokens": float(length)},
            )
            return


def _wraps(site: Site, seen: Tensor) -> Iterator[Finding]:
    """Whether every query sees as many keys, side by side if the last is taken to stand before the first."""
    length, keys = len(seen), seen.sum(1)
    starts = (seen & ~seen.roll(1, 1)).sum(1)
    round_ = seen[:, 0] & seen[:, -1]
    if bool((keys != keys[0]).any()) or bool((starts != 1).any()) or not bool(round_.any()) or bool(round_.all()):
        return
    row = int(round_.nonzero()[0])
    yield Finding(
        "window-wraps",
        "bug",
        f"its window goes round: of {length} tokens, query {row} attends to {_runs(seen[row])}, from both ends of the "
        f"sequence, and so do {int(round_.sum())} queries",
        "mask the keys that torch.roll brings from the other end, or pad in its place and mask the padding",
        site.softmax.where,
        numbers={"queries": float(round_.sum()), "keys": float(keys[0])},
    )


def _next_chunk(site: Site, seen: Tensor, chunk: int) -> Iterator[Finding]:
    """Whether the last key of every chunk's queries is the first one of the next chunk."""
    length = len(seen)
    at = torch.arange(length)
    end = at // chunk * chunk + chunk  # the first position of the next chunk
    last = (seen * at).amax(1)
    inside = end < length
    if bool(inside.any()) and bool((last == end)[inside].all()):
        yield Finding(
            "window-off-by-one",
            "bug",
            f"its chunks have {chunk} tokens, and every query attends to one more: queries 0 to {chunk - 1} also to "
            f"key {chunk}, the first of the next chunk",
            "the end of a chunk is exclusive: key < end",
            site.where_masked(site.steps_before),
            numbers={"chunk": float(chunk)},
        )


def _runs(keys: Tensor) -> str:
    """The keys that a query sees, such as 0 … 3 and 12 … 15."""
    at = [int(x) for x in keys.nonzero()[:, 0]]
    gap = next(n for n in range(1, len(at)) if at[n] != at[n - 1] + 1)
    return f"{at[0]} … {at[gap - 1]} and {at[gap]} … {at[-1]}"
