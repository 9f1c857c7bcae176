"""Whether documents packed into one row stay separate, by document ids, start offsets or positions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling import claims
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.names import DOCUMENTS, STARTS, simple
from headwise.doctor.calling.signature import signature
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import given
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap

FINDINGS = ("packing-leak", "empty-row-nan")

_POSITIONS = re.compile(r"^position(s|_?ids?)$|^pos_ids?$")
_PACKED = re.compile(r"\b(packed|packing|documents?|segments?)\b", re.IGNORECASE)
_OF_DOCUMENTS = re.compile(r"\b(packed|packing|documents?)\b", re.IGNORECASE)
_END = re.compile(r"^(eo[sdt]|end|sep|separator|boundary)(_?of_?\w+)?(_?token)?(_?(id|idx))?$")
_TOKENS = re.compile(r"^(input_|token_)?(ids?|tokens?)$")
_ZERO = re.compile(r"\b0\b[^.]*\bpad|\bpad[^.]*\b(is|are|=) 0\b", re.IGNORECASE)
_FIRST, _LENGTH = 3, 7  # tokens of the first document, and of both together


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    slots = {name for _, name in probe.interface.way.slots}
    roles = [name for name in probe.interface.roles if name not in slots]
    taken = [*roles, *_keywords(patient)]
    names = [name for name in taken if DOCUMENTS.search(simple(name)) or STARTS.match(name.lower())]
    if not names:
        names = [name for name in roles if _POSITIONS.match(name.lower())]
        names = names if names and _PACKED.search(_prose(patient)) else []
    ended = {} if names else _ended(patient, roles)
    names = names or list(ended)
    if not names or probe.interface.takes == "memory":
        raise NotApplicable("forward takes no document ids")
    for batch in (2, 1):  # with packing, a batch is often one row
        inputs = probe.interface.inputs(batch, _LENGTH, _LENGTH)
        for options in [{x: y.expand(batch, -1) for x, y in ended.items()}] if ended else _ways(names, batch):
            if isinstance(probe.attempt(inputs, given=options), Exception):
                continue
            if not _OF_DOCUMENTS.search(_prose(patient)) and _looked_up(probe, inputs, options):
                raise NotApplicable("its segments are ids of a table, such as those of two sentences")
            for also in ({}, *_open(probe, inputs)):  # code with a mask of its own may forget the documents
                try:
                    influence = probe.influence(inputs, given={**options, **also})
                except NotChecked:
                    continue
                across = torch.cat([influence[:_FIRST, _FIRST:].flatten(), influence[_FIRST:, :_FIRST].flatten()])
                if bool((across > REACHED).any()):
                    beside = f" and {', '.join(also)} passed that hides nothing," if also else ""
                    yield _finding(", ".join(options), beside, across)
                    return
            yield from _of_another_row(probe, inputs, options, batch)
            if _ZERO.search(_prose(patient)):
                yield from _with_padding(probe, inputs, options)
            return
    raise NotChecked(f"the values that {', '.join(names)} expect are not known")


def _looked_up(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> bool:
    """Whether one of these values is given to an nn.Embedding as it is."""
    read: list[Tensor] = []
    tables = [x for x in probe.module.modules() if isinstance(x, nn.Embedding)]
    hooks = [x.register_forward_pre_hook(lambda _, given: read.append(given[0])) for x in tables]
    probe.attempt(inputs, given=options)
    for hook in hooks:
        hook.remove()
    return any(x.shape == y.shape and torch.equal(x, y) for x in read for y in options.values())


def _keywords(patient: Patient) -> list[str]:
    """The names that forward reads from its **kwargs."""
    if patient.is_library or not any(p.kind is p.VAR_KEYWORD for p in signature(patient.module).parameters.values()):
        return []  # a library's models choose the kernel that reads them
    named = re.findall(r"""kwargs(?:\.get\(|\.pop\(|\[)\s*["'](\w+)["']""", claims.text_of(patient.module))
    return list(dict.fromkeys(named))


def _prose(patient: Patient) -> str:
    """What docstrings and comments say, those of its base classes too unless they are a library's."""
    comments = re.findall(r"#(.*)", claims.text_of(patient.module))
    kinds = type(patient.module).__mro__[: 1 if patient.is_library else None]
    own = [kind for kind in kinds if not kind.__module__.startswith(("torch.", "builtins"))]
    docs = [x for kind in own for x in (kind.__doc__, getattr(kind.__dict__.get("forward"), "__doc__", None))]
    return "\n".join([*filter(None, docs), *comments])


def _open(probe: Probe, inputs: Inputs) -> Iterator[dict[str, Any]]:
    """Every padding mask, hiding nothing."""
    for name in dict.fromkeys(m.parameter for m in probe.interface.masks if m.works and m.what == "keys"):
        mask = next(m for m in probe.interface.masks if m.parameter == name and m.works)
        yield given(probe.interface, mask, inputs)


def _finding(arguments: str, beside: str, across: Tensor) -> Finding:
    reached, largest = int((across > REACHED).sum()), float(across.amax())
    return Finding(
        "packing-leak",
        "bug",
        f"with {arguments} saying that two documents share a row,{beside} {reached} of {across.numel()} pairs of "
        f"tokens of different documents still attend to one another, by up to {largest:.2g} of the output's size",
        "allow a pair only if both ids are equal: mask = ids[:, None, :, None] == ids[:, None, None, :]",
        numbers={"pairs": reached, "of": across.numel(), "change": largest},
    )


def _with_padding(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> Iterator[Finding]:
    """Whether the id 0, of padding at the end of the row, leaves the outputs of the documents finite."""
    ids = {name: x for name, x in options.items() if x.shape[-1] == _LENGTH}
    padded = {name: torch.cat([x[..., :-2], torch.zeros_like(x[..., :2])], -1) for name, x in ids.items()}
    whole, out = (probe.attempt(inputs, given={**options, **x}) for x in ({}, padded))
    if not ids or not isinstance(whole, Tensor) or not isinstance(out, Tensor) or not bool(whole.isfinite().all()):
        return
    lost = int((~out[:, :-2].isfinite()).any(-1).sum())
    if lost:
        yield Finding(
            "empty-row-nan",
            "bug",
            f"with padding at the end of a row ({', '.join(padded)} = 0), the outputs of {lost} of "
            f"{out[:, :-2].shape[:2].numel()} real tokens are NaN: the rows of padding have no key, and a later layer "
            "multiplies their NaN by the weight 0",
            "fill with the least finite number instead of -inf, or let the tokens of padding see one another",
            numbers={"lost": lost},
        )


def _of_another_row(probe: Probe, inputs: Inputs, options: dict[str, Any], batch: int) -> Iterator[Finding]:
    """Whether a row is divided as the row before it says: both have their own documents, then both those of the second.

    The tokens stay the same, so that the second row must give the same output both times.
    """
    one = next(iter(options.values()))
    if batch < 2 or one.ndim < 2:
        return
    positions = _POSITIONS.match(next(iter(options)).lower())
    own = torch.cat([torch.arange(n) if positions else torch.full((n,), i + 1) for i, n in enumerate((5, 2))])
    apart, alike = torch.stack([one[0], own.to(one)]), torch.stack([own.to(one)] * 2)
    found = [probe.attempt(inputs, given=dict.fromkeys(options, x)) for x in (apart, alike)]
    if any(isinstance(x, Exception) or len(x) != batch for x in found):
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


def _ended(patient: Patient, roles: list[str]) -> dict[str, Tensor]:
    """Ids of tokens [N] of two documents, the first of which ends with the id that the module holds for it."""
    held = [x for name, x in vars(patient.module).items() if _END.search(name) and type(x) is int and x >= 0]
    name = next((name for name in roles if _TOKENS.search(name)), None)
    if name is None or len(held) != 1 or not _OF_DOCUMENTS.search(_prose(patient)):
        return {}
    ids = held[0] + 1 + torch.arange(_LENGTH)
    ids[_FIRST - 1] = held[0]
    return {name: ids}


def _ways(names: list[str], batch: int) -> Iterator[dict[str, Any]]:
    """The same two documents, in the forms that the arguments may take."""
    rest = _LENGTH - _FIRST
    ids, starts = torch.tensor([1] * _FIRST + [2] * rest), torch.tensor([0, _FIRST, _LENGTH])
    positions = torch.cat([torch.arange(_FIRST), torch.arange(rest)])
    lens = [name for name in names if STARTS.match(name.lower())]
    again = [name for name in names if _POSITIONS.match(name.lower())]
    given = [name for name in names if name not in lens and name not in again]
    for many, value in ((given, ids), (again, positions)):
        if many:
            yield dict.fromkeys(many, value.expand(batch, -1))
            yield dict.fromkeys(many, value)
    if lens:
        for dtype in (torch.int32, torch.int64):
            yield dict.fromkeys(lens, starts.to(dtype))
