"""Whether a real token gets the position of padding: the row of a table at its padding_idx gets no gradient.

RoBERTa counts the positions of real tokens from padding_idx + 1 on, and gives padding_idx to padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.functional import embedding

from headwise.doctor.calling.token_ids import is_on_embeddings, padded
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Calls
from headwise.doctor.probing.padded_ids import pad_of
from headwise.doctor.probing.probe import Probe

FINDINGS = ("padding-row",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    named = {path: x for path, x in probe.module.named_modules() if isinstance(x, nn.Embedding)}
    tables = {path: x for path, x in named.items() if x.padding_idx is not None}
    if not is_on_embeddings(patient.module) or not tables:
        raise NotApplicable("it takes no token ids, or has no table with a row of padding")
    try:
        with padded(pad_of(patient.original), slice(0, 0)), Calls([embedding], _rows_of) as calls:
            probe.run(probe.inputs())  # the first example has no padding
    except Exception as error:
        raise NotChecked(f"it does not run on ids: {type(error).__name__}") from None
    for (path, table), (row, weight) in itertools.product(tables.items(), calls.noted):
        at = table.padding_idx
        if weight is table.weight and _are_positions(row) and at in row:
            token = row.index(at)
            yield Finding(
                "padding-row",
                "bug",
                f"token {token}, which is no padding, gets row {at} of {path}, its padding_idx: a row that "
                "gets no gradient",
                f"count the positions of real tokens from padding_idx + 1 = {int(at or 0) + 1}, and give padding_idx "
                "to padding alone",
                patient.where,
                numbers={"row": float(at or 0)},
            )
            return


def _rows_of(ids: Tensor, weight: Tensor, *_: Any, **__: Any) -> tuple[list[int], Tensor]:
    """The rows that the first example reads of a table."""
    return (ids[0] if ids.ndim > 1 else ids).flatten().tolist(), weight


def _are_positions(row: list[int]) -> bool:
    """Whether it counts: each number is the one before plus 1, so that it is no row of token ids."""
    return len(row) > 2 and all(b == a + 1 for a, b in itertools.pairwise(row))
