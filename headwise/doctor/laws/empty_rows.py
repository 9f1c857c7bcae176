"""A query with no allowed key spoils no other: 0 or a mean is fine, NaN in its own row is a risk, and NaN in rows of
others, or in a real call that was given as an example, is a bug.

Ids that begin or end with padding leave their own queries no key, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import MAPS, tensors_in
from headwise.doctor.finding import Finding, Severity
from headwise.doctor.laws.left_padding import takes_prompts
from headwise.doctor.laws.padded_ids import Ids
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import hide, left_padding
from headwise.doctor.probing.probe import Probe, quiet
from headwise.language import Sentence

FINDINGS = ("empty-row-nan",)

_FIX = (
    "set such rows to 0: mask with torch.finfo(dtype).min and zero the row, or use "
    "softmax(...).masked_fill(~mask.any(-1, keepdim=True), 0); or make sure that every query has an allowed key"
)


def check(patient: Patient) -> Iterator[Finding]:
    found = _in_example(patient) or _of_ids(patient)
    if found is not None:
        yield found
        return
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.rowwise(inputs)
    if inputs.query.shape[1] < 3:
        raise NotApplicable("it takes fewer than three queries")
    made = False
    for what, own, empty, ordinary in _ways(inputs):
        usual, out = probe.attempt(inputs, **ordinary), probe.attempt(inputs, **empty)
        if isinstance(usual, Exception) or not usual.isfinite().all() or isinstance(out, Exception):
            continue  # the mask cannot be passed this way, or the call fails for another reason
        made = True
        broken = ~out.isfinite().all(-1)  # [B, Q]
        if not broken.any():
            continue
        others = int((broken & ~own).sum())
        strangers = bool(broken[~own.any(-1)].any())  # rows of other examples
        if others and not _hides(probe, ordinary):
            raise NotChecked("what its mask should hide reaches the output, so that nothing is known of its rows")
        if others and (strangers or not _stacked(probe.module)):
            evidence = Sentence("{what}, and {others} rows of other queries become NaN or infinite")
            yield _nan("bug", evidence.format(what=what, others=others))
        else:
            yield _nan("risk", Sentence("{what}, and its output is NaN or infinite").format(what=what))
        return
    if not made:
        raise NotApplicable("it takes no mask")


def _nan(severity: Severity, evidence: str) -> Finding:
    return Finding("empty-row-nan", severity, evidence, _FIX)


def _hides(probe: Probe, options: dict[str, Any]) -> bool:
    """Whether the masks that are passed with these options hide what they should, as a trial showed."""
    passed = probe.interface.mask_arguments(probe.inputs(), **options)
    return all(any(x.works for x in probe.interface.masks if x.parameter == name) for name in passed)


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
    evidence = Sentence(
        "the call that was given returns NaN in {rows} of {of} rows, although all that was passed is finite: its "
        "mask leaves some queries no key"
    ).format(rows=int(out.isnan().any(-1).sum()), of=out[..., 0].numel())
    return _nan("bug", evidence)


def _of_ids(patient: Patient) -> Finding | None:
    """NaN in rows that are read, for ids with padding after them or before them."""
    if patient.interface.way.layout in MAPS or not is_on_embeddings(patient.module):
        return None
    try:
        ids = Ids(patient)
    except NotApplicable:
        return None
    module, prompts = at_rest(patient.original).cpu(), takes_prompts(patient)
    for place, where in ((slice(-2, None), "at their end"), (slice(0, 2), "at their beginning")):
        after = where == "at their end"
        try:
            with quiet(), torch.no_grad():
                usual, out = (next(tensors_in(module(**x)))[1] for x in (ids.real, ids.padded(place)))
        except Exception:  # it needs another argument
            continue
        if out.ndim > 2 and out.shape[1] == ids.length and after:
            out = out[:, :-2]  # generation goes on at the end of a prompt that begins with padding
        if bool(usual.isfinite().all()) and not bool(out.isfinite().all()):
            return _nan(
                "bug" if after or prompts else "risk",
                Sentence(
                    "ids with two tokens of padding (id {id}) {where} give NaN or infinity in rows that are read: the "
                    "rows of padding have no allowed key{more}"
                ).format(id=ids.pad, where=where, more=", and `generate` takes such prompts" if prompts else ""),
            )
    return None


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
    if inputs.key is None or inputs.key.shape[1] == inputs.query.shape[1]:  # they may be one sequence
        left, causal = left_padding(inputs), torch.ones_like(one).tril()
        own = (~left) & (torch.arange(left.shape[0])[:, None] == 1)
        what = "example 1 begins with two tokens of padding, which have no allowed key in causal attention"
        yield what, own, {"padding": left}, {"padding": one[:, 0]}
        yield what, own, {"padding": left, "allowed": causal}, {"padding": one.any(1), "allowed": causal}


def _stacked(module: nn.Module) -> bool:
    """Whether several layers are stacked: a NaN row of one layer is then a NaN key of the next."""
    lists = (m for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential)))
    return any(
        len({type(x) for x in m}) < len(m) and any(next(x.children(), None) is not None for x in m) for m in lists
    )
