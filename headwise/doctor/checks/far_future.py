"""A mask that hides the next keys and shows those after them: the complement of a band, in the future.

`torch.tril` of a causal mask cuts it at a diagonal, and the numbers above it become 0: the far future is seen. Which
keys are allowed is read from the scores, so that nothing needs to say that it is causal: whoever may see the far future
may see the near one.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.reading.events import FORBIDDEN
from headwise.doctor.reading.site import Site

FINDINGS = ("causal-leak",)

_FEWEST = 3  # queries


def check(patient: Patient) -> Iterator[Finding]:
    if patient.interface.takes == "self" and patient.interface.causal_claim:
        raise NotApplicable("it says that it is causal")  # checks/causal_leak.py sees what it does
    sites = [site for site in patient.see().sites if site.grid is not None]
    if not sites:
        raise NotApplicable("queries, keys and values are not known")
    for site in sites:
        finding = _of(site)
        if finding is not None:
            yield finding
            return


def _of(site: Site) -> Finding | None:
    gaps = {query: gap for query, row in enumerate(site.scores[0, 0] > FORBIDDEN) if (gap := _gap(row))}
    lasts = [last for last, _ in gaps.values()]
    hidden = {size for _, size in gaps.values()}
    if all((last, size) == (query - 1, 1) for query, (last, size) in gaps.items()):
        return None  # every query sees all but itself, as it is meant
    if len(gaps) < _FEWEST or len(hidden) > 1 or lasts != list(range(lasts[0], lasts[0] + len(lasts))):
        return None
    (size,), query = hidden, next(iter(gaps))
    return Finding(
        "causal-leak",
        "bug",
        f"{len(gaps)} queries attend to all keys up to a position, not to the next {size}, and again to those after "
        f"them: query {query} to 0 … {lasts[0]} and from {lasts[0] + size + 1} on",
        "a window hides old keys as well: masked | tril(ones, diagonal=-window), not tril(masked, diagonal=window)",
        site.where_masked(site.steps_before),
        numbers={"queries": float(len(gaps)), "hidden": float(size)},
    )


def _gap(allowed: Tensor) -> tuple[int, int] | None:
    """The last key before the hidden ones, and how many are hidden, of a row that begins with keys that are seen."""
    ends = (allowed[1:] != allowed[:-1]).nonzero()[:, 0].tolist()
    if not bool(allowed[0]) or len(ends) not in (2, 3):  # (of 3 the last is the end of a document)
        return None
    return ends[0], ends[1] - ends[0]
