"""The law: tokens of different documents that are packed into one row do not reach one another.

Which documents there are is told by ids, by where each begins, or by positions that begin again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.names import STARTS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import given_to
from headwise.doctor.probing.masking import each, given
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.language import Sentence
from headwise.masks import documents

FINDINGS = ("packing-leak",)

_SIZES = ((3, 4), (5, 2))  # of the two documents in a row, and of those in the next row
_LENGTH = 7


def check(patient: Patient) -> Iterator[Finding]:
    names = patient.contract.documents
    if not names or patient.interface.takes == "memory":
        raise NotApplicable("forward takes no document ids")
    probe = Probe(patient)
    for batch in (2, 1):  # with packing, a batch is often one row
        inputs = probe.interface.inputs(batch, _LENGTH, _LENGTH)
        for options in _ways(names, batch):
            if isinstance(probe.attempt(inputs, given=options), Exception):
                continue
            if _looked_up(probe, inputs, options):
                raise NotApplicable("its segments are ids of a table, such as those of two sentences")
            yield from _of_two(probe, inputs, options)
            return
    raise NotChecked(Sentence("the values that {names} expect are not known").format(names=", ".join(names)))


def _ways(names: Sequence[str], batch: int) -> Iterator[dict[str, Any]]:
    """The same two documents, in the forms that the arguments may take."""
    starting = [name for name in names if STARTS.match(name.lower())]
    if starting:
        starts = torch.tensor([0, _SIZES[0][0], _LENGTH])
        yield from (dict.fromkeys(starting, starts.to(dtype)) for dtype in (torch.int32, torch.int64))
        return
    positions = any("pos" in name.lower() for name in names)
    ids = [[torch.arange(n) if positions else torch.full((n,), i) for i, n in enumerate(row, 1)] for row in _SIZES]
    rows = torch.stack([torch.cat(row) for row in ids])
    yield dict.fromkeys(names, rows[:batch])
    yield dict.fromkeys(names, rows[0])


def _of_two(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> Iterator[Finding]:
    rows = len(inputs.query) if next(iter(options.values())).ndim > 1 else 1
    apart = [~documents([0] * first + [1] * second).to_bool(_LENGTH)[0, 0] for first, second in _SIZES[:rows]]
    padding = [x for x in each(probe.interface.masks) if x.works and x.what == "keys"]
    for also in ({}, *(given(probe.interface, mask, inputs) for mask in padding)):  # of padding, which hides nothing
        try:
            reached = (probe.influence(inputs, example=i, given={**options, **also}) for i in range(rows))
            across = torch.cat([x[pairs] for x, pairs in zip(reached, apart, strict=True)])
        except NotChecked:
            continue
        if bool((across > REACHED).any()):
            pairs, change = int((across > REACHED).sum()), float(across.amax())
            beside = Sentence(" and {also} passed that hides nothing,").format(also=", ".join(also)) if also else ""
            yield Finding(
                "packing-leak",
                "bug",
                Sentence(
                    "with {options} saying that two documents share a row,{beside} {pairs} of {of} pairs of tokens of "
                    "different documents still attend to one another, by up to {change:.2g} of the output's size"
                ).format(options=", ".join(options), beside=beside, pairs=pairs, of=across.numel(), change=change),
                "allow a pair only if both ids are equal: mask = ids[:, None, :, None] == ids[:, None, None, :]",
            )
            return


def _looked_up(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> bool:
    """Whether one of these values is given to an nn.Embedding as it is."""
    tables = [x for x in probe.module.modules() if isinstance(x, nn.Embedding)]
    read = given_to(tables, lambda: probe.attempt(inputs, given=options))
    return any(x.shape == y.shape and torch.equal(x, y) for x in read for y in options.values())
