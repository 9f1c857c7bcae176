"""The law: tokens of different documents that are packed into one row do not reach one another.

Which documents there are is told by ids, by where each begins, or by positions that begin again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.names import STARTS
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap
from headwise.masks import documents

FINDINGS = ("packing-leak",)

_FIRST, _LENGTH = 3, 7  # tokens of the first document, and of both together


def check(patient: Patient) -> Iterator[Finding]:
    said = patient.contract.documents
    if said is None or patient.interface.takes == "memory":
        raise NotApplicable("forward takes no document ids")
    probe = Probe(patient)
    for batch in (2, 1):  # with packing, a batch is often one row
        inputs = probe.interface.inputs(batch, _LENGTH, _LENGTH)
        for options in _ways(said.value, batch):
            if isinstance(probe.attempt(inputs, given=options), Exception):
                continue
            if _looked_up(probe, inputs, options):
                raise NotApplicable("its segments are ids of a table, such as those of two sentences")
            yield from _of_two(probe, inputs, options)
            return
    raise NotChecked(f"the values that {said.words} expect are not known")


def _ways(names: Sequence[str], batch: int) -> Iterator[dict[str, Any]]:
    """The same two documents, in the forms that the arguments may take."""
    rest = _LENGTH - _FIRST
    ids, starts = torch.tensor([1] * _FIRST + [2] * rest), torch.tensor([0, _FIRST, _LENGTH])
    positions = torch.cat([torch.arange(_FIRST), torch.arange(rest)])
    if any(STARTS.match(name.lower()) for name in names):
        names = [name for name in names if STARTS.match(name.lower())]
        yield from (dict.fromkeys(names, starts.to(dtype)) for dtype in (torch.int32, torch.int64))
        return
    value = positions if any("pos" in name.lower() for name in names) else ids
    yield dict.fromkeys(names, value.expand(batch, -1))
    yield dict.fromkeys(names, value)


def _of_two(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> Iterator[Finding]:
    apart = ~documents([0] * _FIRST + [1] * (_LENGTH - _FIRST)).to_bool(_LENGTH)[0, 0]
    for also in ({}, *_open(probe, inputs)):  # code with a mask of its own may forget the documents
        try:
            influence = probe.influence(inputs, given={**options, **also})
        except NotChecked:
            continue
        across = influence[apart]
        if bool((across > REACHED).any()):
            reached, largest = int((across > REACHED).sum()), float(across.amax())
            beside = f" and {', '.join(also)} passed that hides nothing," if also else ""
            yield Finding(
                "packing-leak",
                "bug",
                f"with {', '.join(options)} saying that two documents share a row,{beside} {reached} of "
                f"{across.numel()} pairs of tokens of different documents still attend to one another, by up to "
                f"{largest:.2g} of the output's size",
                "allow a pair only if both ids are equal: mask = ids[:, None, :, None] == ids[:, None, None, :]",
                numbers={"pairs": float(reached), "of": float(across.numel()), "change": largest},
            )
            return
    yield from _of_another_row(probe, inputs, options)


def _open(probe: Probe, inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Every padding mask, hiding nothing."""
    masks = {m.parameter: m for m in reversed(probe.interface.masks) if m.works and m.what == "keys"}
    yield from (given(probe.interface, mask, inputs) for mask in masks.values())


def _of_another_row(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> Iterator[Finding]:
    """Whether a row is divided as the row before it says: both have their own documents, then both those of the second.

    The tokens stay the same, so that the second row must give the same output both times.
    """
    one = next(iter(options.values()))
    if len(inputs.query) < 2 or one.ndim < 2:
        return
    sizes = (5, _LENGTH - 5)
    positions = bool((one[0] == 0).any())
    own = torch.cat([torch.arange(n) if positions else torch.full((n,), i + 1) for i, n in enumerate(sizes)]).to(one)
    rows = (torch.stack([one[0], own]), torch.stack([own, own]))
    found = [probe.attempt(inputs, given=dict.fromkeys(options, x)) for x in rows]
    if any(isinstance(x, Exception) or len(x) != 2 for x in found):
        return
    first, second = (x[1:] for x in found if isinstance(x, Tensor))
    change = gap(first, second)
    if change > ROUNDING and bool(first.isfinite().all()):
        yield Finding(
            "packing-leak",
            "bug",
            f"where the documents of two rows begin at different places ({', '.join(options)}), the second row changes "
            f"with the documents of the first, by up to {change:.2g} of the output's size: the mask of one row is used "
            "for all",
            "make a mask for every row: mask = ids[:, None, :, None] == ids[:, None, None, :]",
            numbers={"change": change},
        )


def _looked_up(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> bool:
    """Whether one of these values is given to an nn.Embedding as it is."""
    read: list[Tensor] = []
    tables = [x for x in probe.module.modules() if isinstance(x, nn.Embedding)]
    hooks = [x.register_forward_pre_hook(lambda _, given: read.append(given[0])) for x in tables]
    probe.attempt(inputs, given=options)
    for hook in hooks:
        hook.remove()
    return any(x.shape == y.shape and torch.equal(x, y) for x in read for y in options.values())
