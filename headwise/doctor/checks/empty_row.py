"""What a query with no allowed key gives: 0 or a mean is fine, NaN is a risk. NaN in other rows, or in a real call that
was given as an example, is a bug.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.forward_arguments import sides
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import MAP, MAPS, tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.laws.left_padding import promised
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.masking import hide, left_padding
from headwise.doctor.probing.padded_ids import answers, pad_of, padded_from, real_ids
from headwise.doctor.probing.probe import Probe, quiet
from headwise.doctor.reading.documents import documents
from headwise.errors import shortened

FINDINGS = ("empty-row-nan",)

_LENGTH = 6  # ids
_FIX = (
    "set such rows to 0: mask with torch.finfo(dtype).min and zero the row, or use "
    "softmax(...).masked_fill(~mask.any(-1, keepdim=True), 0); or make sure that every query has an allowed key"
)


def check(patient: Patient) -> Iterator[Finding]:
    found = (
        _in_example(patient) or _row_of_padding(patient) or _padding_behind_ids(patient) or _padding_before_ids(patient)
    )
    if found is not None:
        yield found
        return
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.rowwise(inputs)
    if inputs.query.shape[1] < 3:
        raise NotApplicable("it takes fewer than three queries")
    made = False
    left = promised(patient)
    empty_ones = _promised(patient)
    ways = [(empty_ones, way) for way in (*_ways(inputs), *_by_ids(probe, inputs))]
    on_the_left = [(left, way) for way in _on_the_left(inputs)]
    for said, (what, own, empty, ordinary) in (*on_the_left, *ways) if left else (*ways, *on_the_left):
        usual = probe.attempt(inputs, **ordinary)
        if isinstance(usual, Exception) or not usual.isfinite().all():
            continue  # the mask cannot be passed this way, or the call fails for another reason
        out = probe.attempt(inputs, **empty)
        if isinstance(out, Exception):
            continue
        made = True
        broken = ~out.isfinite().all(-1)  # [B, Q]
        if not broken.any():
            continue
        others = int((broken & ~own).sum())
        numbers = {"rows": int((broken & own).sum()), "others": others}
        strangers = broken[~own.any(-1)].any()  # rows of other examples
        if others and (strangers or not _stacked(probe.module)):
            evidence = f"{what}, and {others} rows of other queries become NaN or infinite"
            yield Finding("empty-row-nan", "bug", evidence, _FIX, numbers=numbers)
            return
        spoilt = _spoilt(probe, inputs, own, empty)
        gradient = f"; a loss that leaves it out still gives {spoilt} parameters NaN gradients" if spoilt else ""
        meant = f', and it is meant for such input: "{said}"' if said else ""
        evidence = f"{what}, and its output is NaN or infinite{gradient}{meant}"
        severity: Severity = "bug" if said else "risk"
        yield Finding("empty-row-nan", severity, evidence, _FIX, numbers={**numbers, "parameters": spoilt})
        return
    if not made:
        raise NotApplicable("it takes no mask")


_EMPTY = re.compile(
    r"(mask|\brow|\bsample|\bsentence|\bexample|\bdocument|\bnode)s?\b[^.]{0,60}\b"
    r"(of (all )?zeros|all[- ]zeros?|all[- ]false|(entirely|only) padding|fully[- ](masked|padded)"
    r"|no (valid|real|allowed) (keys?|tokens?|positions?))\b",
    re.IGNORECASE,
)
_NOT = re.compile(r"\bnan\b|\bnever\b|\b(must|may|can|should) ?not\b|\braises?\b|\bat least\b", re.IGNORECASE)


def _promised(patient: Patient) -> str:
    """Where its text, or that at the top of its file, speaks of masks that leave a query no key."""
    file = inspect.getmodule(type(patient.module))
    for text in (*documents(patient.module), (file.__doc__ or "") if file else ""):
        for sentence in re.split(r"(?<=[.;])\s", " ".join(text.split())):
            if _EMPTY.search(sentence) and not _NOT.search(sentence):
                return shortened(sentence.strip(), 80)
    return ""


def _in_example(patient: Patient) -> Finding | None:
    """NaN in the call that was given, all of whose numbers are finite: this mask does occur."""
    args, kwargs = patient.example or ((), {})
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor)]
    masked = any(x.dtype == torch.bool for x in given) or any("mask" in name for name in kwargs)
    if not masked or any(bool(x.isnan().any()) for x in given):
        return None
    try:
        with quiet(), torch.no_grad():
            raw = patient.call_given(patient.fresh().module)
    except Exception:
        return None
    out = next((x for _, x in tensors_in(raw)), None)
    if out is None or out.ndim < 2 or not bool(out.isnan().any()):
        return None
    rows = int(out.isnan().any(-1).sum())
    return Finding(
        "empty-row-nan",
        "bug",
        f"the call that was given returns NaN in {rows} of {out[..., 0].numel()} rows, although all that was passed is "
        "finite: its mask leaves some queries no key",
        _FIX,
        numbers={"rows": rows},
    )


def _row_of_padding(patient: Patient) -> Finding | None:
    """NaN for rows of ids, such as the sentences of a document, of which one is padding alone."""
    if patient.interface.way.layout not in MAPS or not is_on_embeddings(patient.module):
        return None
    pad, (rows, columns) = pad_of(patient.original), sides(MAP)
    ids = real_ids(patient.original, {pad}, MAP).unflatten(1, (rows, columns))
    padded = ids.clone()
    padded[0, -1] = pad
    if not _spoils(patient, ids, padded):
        return None
    return Finding(
        "empty-row-nan",
        "bug",
        f"ids of {rows} rows of which the last is padding (id {pad}) alone give NaN or infinity, also where the other "
        "rows are read",
        _FIX,
        numbers={"rows": float(rows)},
    )


def _padding_before_ids(patient: Patient) -> Finding | None:
    """NaN for ids that begin with padding, which has no allowed key in causal attention."""
    made = None if patient.interface.way.layout in MAPS else padded_from(patient, slice(0, 2), _LENGTH)
    if made is None or not _spoils(patient, *made[:2]):
        return None
    meant = promised(patient)
    return Finding(
        "empty-row-nan",
        "bug" if meant else "risk",
        f"ids that begin with two tokens of padding (id {made[2]}) give NaN or infinity: these have no allowed key"
        + (f', and it is meant for such input: "{meant}"' if meant else ""),
        _FIX,
    )


def _padding_behind_ids(patient: Patient) -> Finding | None:
    """NaN for the tokens before padding: rows of padding without an allowed key spread in the next layer."""
    made = None if patient.interface.way.layout in MAPS else padded_from(patient, slice(-2, None), _LENGTH)
    found = None if made is None else answers(patient, *made[:2])
    if made is None or found is None or not bool(found[0].isfinite().all()):
        return None
    row = found[1][0]
    real = row[: made[0].shape[1] - 2] if row.ndim > 1 and len(row) == made[0].shape[1] else row
    if bool(real.isfinite().all()):
        return None
    return Finding(
        "empty-row-nan",
        "bug",
        f"ids that end with two tokens of padding (id {made[2]}) give NaN or infinity for the tokens before them: the "
        "rows of padding have no allowed key, and spread in the next layer",
        _FIX,
    )


def _spoils(patient: Patient, ids: Tensor, padded: Tensor) -> bool:
    """Whether all numbers are finite for the ids, and not for these with padding."""
    found = answers(patient, ids, padded)
    return found is not None and bool(found[0].isfinite().all()) and not bool(found[1].isfinite().all())


def _ways(inputs: Inputs) -> Iterator[tuple[str, Tensor, dict[str, Any], dict[str, Any]]]:
    """Which queries have no allowed key, in words and as [B, Q]; the mask for it; an ordinary mask of the same kind."""
    one = hide(inputs, 1)
    for what, examples in (("query 2 of example 1 has no allowed key", [1]), ("query 2 has no allowed key", [0, 1, 2])):
        allowed = torch.ones_like(one)
        allowed[examples, 2] = False
        yield what, ~allowed.any(-1), {"allowed": allowed}, {"allowed": one}
    padding = torch.ones_like(one[:, 0])
    padding[1] = False
    own = (~padding[:, :1]).expand(inputs.query.shape[:2])
    yield "every key of example 1 is padding", own, {"padding": padding}, {"padding": one[:, 0]}


def _by_ids(probe: Probe, inputs: Inputs) -> Iterator[tuple[str, Tensor, dict[str, Any], dict[str, Any]]]:
    """The same for ids of pairs [B, Q, K], such as relations between nodes, where 0 stands for none."""
    batch, queries = inputs.query.shape[:2]
    for name, make in probe.interface.way.extras:
        ids = make(probe.interface.way.sizes(inputs))
        pairs = isinstance(ids, Tensor) and ids.shape == (batch, queries, queries)
        if pairs and not ids.is_floating_point() and ids.dtype != torch.bool:
            none = ids.clone()
            none[1, 2], none[1, :, 2] = 0, 0
            own = torch.zeros(batch, queries, dtype=torch.bool)
            own[1, 2] = True
            what = f"{name} is 0 between token 2 of example 1 and every token"
            yield what, own, {"given": {name: none}}, {"given": {name: ids}}


def _on_the_left(inputs: Inputs) -> Iterator[tuple[str, Tensor, dict[str, Any], dict[str, Any]]]:
    """The same for padding before the tokens, if queries and keys may be one sequence."""
    if inputs.key is None or inputs.key.shape[1] == inputs.query.shape[1]:
        one, left = hide(inputs, 1), left_padding(inputs)
        causal = torch.ones_like(one).tril()
        own = (~left) & (torch.arange(left.shape[0])[:, None] == 1)
        what = "example 1 begins with two tokens of padding, which have no allowed key in causal attention"
        yield what, own, {"padding": left}, {"padding": one[:, 0]}
        yield what, own, {"padding": left, "allowed": causal}, {"padding": one.any(1), "allowed": causal}


def _spoilt(probe: Probe, inputs: Inputs, own: Tensor, options: dict[str, Any]) -> int:
    """How many parameters get a NaN gradient if the loss reads only the other rows."""
    wanted = [x for x in probe.module.parameters() if x.requires_grad]
    try:
        with quiet(), torch.enable_grad():
            out = probe.interface.run(inputs, grad=True, **options).output
            found = torch.autograd.grad(out[~own].sum(), wanted, allow_unused=True)
    except Exception:
        return 0
    return sum(1 for g in found if g is not None and bool(g.isnan().any()))


def _stacked(module: nn.Module) -> bool:
    """Whether several layers are stacked: a NaN row of one layer is then a NaN key of the next."""
    lists = (m for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)))
    return any(
        len({type(x) for x in m}) < len(m) and any(next(x.children(), None) is not None for x in m) for m in lists
    )
