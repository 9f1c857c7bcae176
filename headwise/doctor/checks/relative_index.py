"""Relative positions that share an entry of a learned table of biases, though the table has one for each.

An index [N, N] of a window of several dimensions is compared with the offsets between its positions. Buckets that are
computed in forward are read from the embedding they are looked up in: if all earlier keys (or all later ones, where
they are seen) have one bucket, the sign of the distance is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import REACHED, Probe
from headwise.doctor.reading.creation import origin

FINDINGS = ("relative-bias-shared",)

_TABLE = re.compile(r"rel(ative)?(_|$)|bias|bucket|pos", re.IGNORECASE)
_LENGTH = 9


def check(patient: Patient) -> Iterator[Finding]:
    made = 0
    for holder in patient.module.modules():
        for name, index in holder.named_buffers(recurse=False):
            offsets = _offsets(holder, index)
            rows = [x.shape[0] for label, x in holder.named_parameters() if x.ndim == 2 and _TABLE.search(label)]
            if offsets is None or not rows or not _TABLE.search(name):
                continue
            made += 1
            yield from _compared(patient, name, index, offsets, max(rows))
    looked_up = _looked_up(patient)
    for name, table, index in looked_up:
        yield from _one_bucket(patient, name, table, index)
    if not made and not looked_up:
        raise NotApplicable("no table of relative positions was found")


def _offsets(holder: nn.Module, index: Tensor) -> Tensor | None:
    """[N, N]: a number for each offset between two positions of its window; None if this is no index of a window."""
    if index.ndim != 2 or index.shape[0] != index.shape[1] or index.is_floating_point() or index.dtype == torch.bool:
        return None
    for value in vars(holder).values():
        if type(value) is int and value > 1 and value**2 == len(index):
            value = (value, value)
        if not (isinstance(value, (tuple, list)) and len(value) > 1 and all(type(x) is int and x > 0 for x in value)):
            continue
        grid = torch.stack(torch.meshgrid(*map(torch.arange, value), indexing="ij")).flatten(1)
        if grid.shape[1] == len(index):
            apart = grid[:, :, None] - grid[:, None, :]
            number = torch.zeros_like(apart[0])
            for size, x in zip(value, apart, strict=True):
                number = number * (2 * size - 1) + x + size - 1
            return number
    return None


def _compared(patient: Patient, name: str, index: Tensor, offsets: Tensor, rows: int) -> Iterator[Finding]:
    pairs = torch.stack([offsets.flatten(), index.cpu().flatten().to(offsets)], 1).unique(dim=0)
    of, entries = len(offsets.unique()), len(index.unique())
    if len(pairs) == of and entries < of <= rows:
        yield Finding(
            "relative-bias-shared",
            "bug",
            f"{name} has {entries} different entries for the {of} offsets between positions of its window, although "
            f"the table has {rows} rows: different offsets share a bias",
            "multiply each coordinate by the number of offsets of the dimensions behind it: (2 h - 1) (2 w - 1), "
            "2 w - 1, 1",
            patient.where,
            numbers={"entries": entries, "offsets": of},
        )


def _looked_up(patient: Patient) -> list[tuple[str, nn.Embedding, Tensor]]:
    """Embeddings that a square of distances is looked up in: path, table, [N, N]."""
    twin = patient.fresh()
    found: dict[str, tuple[str, nn.Embedding, Tensor]] = {}

    def note(path: str, part: nn.Embedding, index: Tensor) -> None:
        if index.ndim >= 2 and index.shape[-1] == index.shape[-2] > 4:
            one = index.reshape(-1, *index.shape[-2:])[0].detach().clone()
            if all(len(one.diagonal(d).unique()) == 1 for d in range(-len(one) + 1, len(one))):
                found.setdefault(path, (path, part, one))

    hooks = [
        part.register_forward_pre_hook(lambda part, given, path=path: note(path, part, given[0]))
        for path, part in twin.module.named_modules()
        if isinstance(part, nn.Embedding)
    ]
    if hooks and twin.interface.takes == "self":
        with torch.no_grad():
            twin.interface.run(twin.interface.inputs(2, twin.interface.length or _LENGTH))
    for hook in hooks:
        hook.remove()
    return list(found.values())


def _one_bucket(patient: Patient, path: str, table: nn.Embedding, index: Tensor) -> Iterator[Finding]:
    n = len(index)
    earlier = [int(index[d, 0]) for d in range(1, n)]
    later = [int(index[0, d]) for d in range(1, n)]
    if table.num_embeddings < 4:
        return
    interface = patient.interface
    outside = bool(interface.causal_claim) or any(mask.what == "cells" for mask in interface.masks)
    outside |= any(getattr(part, "is_decoder", False) is True for part in patient.module.modules())
    probe = Probe(patient)
    inputs = probe.inputs(length=_LENGTH)
    seen = probe.influence(inputs) > REACHED
    for here, others, visible, word in (
        (earlier, later, seen.tril(-1), "before"),
        (later, earlier, seen.triu(1), "after"),
    ):
        apart = len(set(others)) > 2  # it tells distances apart on the other side
        if word == "after" and outside:  # the caller's causal mask hides them
            continue
        if len(set(here)) == 1 and apart and bool(visible.any()):
            yield Finding(
                "relative-bias-shared",
                "bug",
                f"all keys {word} the query have the same bias, row {here[0]} of the {table.num_embeddings} of {path}, "
                f"however far they are; those on the other side have {len(set(others))} different ones",
                "check the sign of the distance, and which direction its clamp keeps",
                origin(patient.module, f"{path}.weight"),
                numbers={"entries": 1.0, "others": len(set(others))},
            )
            return
