"""Whether a real token gets the position of padding: the row of a table at its padding_idx gets no gradient.

RoBERTa counts the positions of real tokens from padding_idx + 1 on, and gives padding_idx to padding.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.doctor.calling.token_ids import is_on_embeddings, padded
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.padded_ids import pad_of
from headwise.doctor.probing.probe import Probe

FINDINGS = ("padding-row",)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    named = {path: x for path, x in patient.module.named_modules() if isinstance(x, nn.Embedding)}
    tables = {path: x for path, x in named.items() if x.padding_idx is not None}
    if not is_on_embeddings(patient.module) or not tables:
        raise NotApplicable("it takes no token ids, or has no table with a row of padding")
    read: dict[str, Tensor] = {}

    def hook(path: str) -> Any:
        return lambda _, given: read.setdefault(path, given[0].detach().clone())

    hooks = [probe.module.get_submodule(path).register_forward_pre_hook(hook(path)) for path in tables]
    try:
        with padded(pad_of(patient.original), slice(0, 0)):  # the first example has no padding
            probe.run(probe.inputs())
    except Exception as error:
        raise NotChecked(f"it does not run on ids: {type(error).__name__}") from None
    finally:
        for each in hooks:
            each.remove()
    for path, rows in read.items():
        row = (rows[0] if rows.ndim > 1 else rows).flatten().tolist()
        at = tables[path].padding_idx
        if _are_positions(row) and at in row:
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


def _are_positions(row: list[int]) -> bool:
    """Whether it counts: each number is the one before plus 1, so that it is no row of token ids."""
    return len(row) > 2 and all(b == a + 1 for a, b in itertools.pairwise(row))
