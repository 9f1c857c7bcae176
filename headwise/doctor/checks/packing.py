"""Whether documents packed into one row stay separate, by document ids, start offsets or positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, Probe

FINDINGS = ("packing-leak",)

_IDS = re.compile(
    r"^([a-z]+_)?(seg(ment)?|doc(ument)?|image|img|group|graph|pack(ing|ed)?|sequence|seq|sample|example)_?(ids?|index|indices|idx|ranks?)s?$"
)
_STARTS = re.compile(r"^cu_?(seq_?)?lens?(_[qk])?$|^cumulative_(seq_?)?len(gth)?s$")
_POSITIONS = re.compile(r"^position(s|_?ids?)$|^pos_ids?$")
_PACKED = re.compile(r"\b(packed|packing|documents?|segments?)\b", re.IGNORECASE)
_FIRST, _LENGTH = 3, 7  # tokens of the first document, and of both together


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    roles = probe.interface.roles
    names = [name for name in roles if _IDS.match(name.lower()) or _STARTS.match(name.lower())]
    if not names:
        names = [name for name in roles if _POSITIONS.match(name.lower())]
        names = names if names and _PACKED.search(_prose(probe.module)) else []
    if not names or probe.interface.takes == "memory":
        raise NotApplicable("forward takes no document ids")
    for batch in (2, 1):  # with packing, a batch is often one row
        inputs = probe.interface.inputs(batch, _LENGTH, _LENGTH)
        for options in _ways(names, batch):
            if isinstance(probe.attempt(inputs, given=options), Exception):
                continue
            influence = probe.influence(inputs, given=options)
            across = torch.cat([influence[:_FIRST, _FIRST:].flatten(), influence[_FIRST:, :_FIRST].flatten()])
            if bool((across > REACHED).any()):
                yield _finding(", ".join(options), across)
            return
    raise NotChecked(f"the values that {', '.join(names)} expect are not known")


def _prose(module: nn.Module) -> str:
    """What docstrings and comments say."""
    kind = type(module)
    comments = re.findall(r"#(.*)", claims.text_of(module))
    own = () if kind.__module__.startswith("torch.") else (kind.__doc__, kind.forward.__doc__)
    return "\n".join([*filter(None, own), *comments])


def _finding(arguments: str, across: Tensor) -> Finding:
    reached, largest = int((across > REACHED).sum()), float(across.amax())
    return Finding(
        "packing-leak",
        "bug",
        f"with {arguments} saying that two documents share a row, {reached} of {across.numel()} pairs of tokens of "
        f"different documents still attend to one another, by up to {largest:.2g} of the output's size",
        "allow a pair only if both ids are equal: mask = ids[:, None, :, None] == ids[:, None, None, :]",
        numbers={"pairs": reached, "of": across.numel(), "change": largest},
    )


def _ways(names: list[str], batch: int) -> Iterator[dict[str, Any]]:
    """The same two documents, in the forms that the arguments may take."""
    rest = _LENGTH - _FIRST
    ids, starts = torch.tensor([1] * _FIRST + [2] * rest), torch.tensor([0, _FIRST, _LENGTH])  # 0 may be padding
    positions = torch.cat([torch.arange(_FIRST), torch.arange(rest)])
    lens = [name for name in names if _STARTS.match(name.lower())]
    again = [name for name in names if _POSITIONS.match(name.lower())]
    given = [name for name in names if name not in lens and name not in again]
    for many, value in ((given, ids), (again, positions)):
        if many:
            yield dict.fromkeys(many, value.expand(batch, -1))
            yield dict.fromkeys(many, value)
    if lens:
        for dtype in (torch.int32, torch.int64):
            yield dict.fromkeys(lens, starts.to(dtype))
