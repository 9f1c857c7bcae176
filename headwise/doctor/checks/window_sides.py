"""A window of two sides, [left, right], compared with what its text says that each of the numbers counts.

Which keys are allowed is read from the scores. Only a side whose count is stated in words is judged, such as "w_right
future frames".
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import FORBIDDEN

FINDINGS = ("window-off-by-one",)

_NAME = re.compile(r"window|context", re.IGNORECASE)
_SAID = (
    re.compile(r"(?<!than )`?\b\w*left\w*`? (past|previous|earlier|preceding) (?!.{0,40}\bitself)", re.IGNORECASE),
    re.compile(
        r"\b\w*right\w*`? (future|next|following|later|subsequent|look-?ahead) (?!.{0,40}\bitself)", re.IGNORECASE
    ),
)
_LARGEST = 64


def check(patient: Patient) -> Iterator[Finding]:
    name, sides = next(
        (
            (name, value)
            for name, value in vars(patient.module).items()
            if _NAME.search(name) and isinstance(value, (tuple, list)) and [type(x) for x in value] == [int, int]
        ),
        ("", ()),
    )
    text = " ".join(text_of(patient.module).split())
    said = [bool(words.search(text)) for words in _SAID]
    if not name or not all(0 < x <= _LARGEST for x in sides) or not any(said):
        raise NotApplicable("no text says what the two sides of its window count")
    if patient.interface.takes != "self" or patient.interface.length:
        raise NotApplicable("its keys are given apart from its queries, or its length is fixed")
    length = 2 * max(sides) + 3
    try:
        sites = look(patient, batch=1, length=length).sites
    except Exception as error:
        raise NotChecked(f"it does not take {length} positions: {error}") from error
    apart = torch.arange(length)[:, None] - torch.arange(length)
    for site in sites:
        if site.grid is None or site.scores.shape[-2:] != (length, length):
            continue
        allowed = (site.scores > FORBIDDEN)[0, 0]
        if bool(allowed.all()) or not bool(allowed.any()):
            continue
        reach = int(apart[allowed].max()), int(-apart[allowed].min())
        if not bool((allowed == ((apart <= reach[0]) & (-apart <= reach[1]))).all()):
            continue  # not a band
        for word, stated, sees, told in zip(("earlier", "later"), sides, reach, said, strict=True):
            if told and abs(sees - stated) == 1:
                yield Finding(
                    "window-off-by-one",
                    "bug",
                    f"{name} = {tuple(sides)}, and its text says that a position attends to {stated} {word} ones: it "
                    f"attends to {sees}",
                    "include the position at the stated distance: <= and >=, or correct the text",
                    site.where_masked(site.steps_before),
                    numbers={"stated": float(stated), "sees": float(sees)},
                )
                return
