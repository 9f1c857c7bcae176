"""Whether tokens one by one, with the module's own cache, give what the whole sequence gives.

The last row of every prefix, computed without a cache, is what its step must give. Tried where a cache is recognised:
one that comes back and is handed in again, one that is filled while it is handed in, or one that the module keeps,
with a start position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling.interface import Interface, discover
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.decoding import Session, Steps, sessions
from headwise.doctor.probing.probe import REACHED, ROUNDING, awake, gap, sentence

FINDINGS = ("cache-mismatch", "causal-corner")
SOURCES = ("transformers #47597 #25104",)

_LENGTH, _SHORT, _PROMPT = 24, 6, 3  # long enough to pass the limits of small tables, else short


_CORNER = ("pytorch #108108", "flash-attention #282 #351")
_ALIGN = (
    "align the causal mask with the last key: key <= query + (keys - queries). is_causal=True of "
    "scaled_dot_product_attention aligns with the first"
)


def check(patient: Patient) -> Iterator[Finding]:
    interface = _own_sequence(patient)
    if patient.anatomy is not None and len(patient.anatomy.sites) > 1 and not interface.causal_claim:
        raise NotApplicable("its layers see the future: what an earlier one kept would have to change")
    steps = Steps(interface, _LENGTH)
    if interface.length is not None or not (steps.caches or steps.starts or steps.flags):
        raise NotApplicable("forward takes no cache")
    for length in (_LENGTH, _SHORT):
        steps = Steps(interface, length)
        try:
            expected = torch.stack([steps.call(0, n)[0][:, -1] for n in range(1, length + 1)], dim=1)  # [B, N, M]
            whole = steps.call(0, length)[0]
            break
        except Exception as problem:
            if length == _SHORT:
                raise NotChecked(f"without a cache it does not run: {sentence(problem)}") from problem
    for session in sessions(steps):
        try:
            outs = [session.feed(0, _PROMPT)[:, -1:], *(session.feed(n, n + 1) for n in range(_PROMPT, length))]
            alone = steps.call(_PROMPT, _PROMPT + 1)[0]
        except Exception:  # not the way in which this cache is used
            continue
        ignored = gap(outs[1], alone) <= REACHED
        if ignored and not session.handed:
            continue  # an offset, say, and no cache at all
        found = list(_compared(session, torch.cat(outs, dim=1), expected, ignored))
        yield from found
        if not found and gap(expected, whole) <= ROUNDING:
            yield from _chunks(session, whole, bool(interface.causal_claim))
        return
    raise NotChecked(
        f"it is not known how its cache ({', '.join([*steps.caches, *steps.starts, *steps.flags])}) is used"
    )


def _own_sequence(patient: Patient) -> Interface:
    """How it is called in self-attention."""
    copy = patient.fresh()
    awake(copy.module)
    interface = copy.interface
    if interface.takes != "self" and "self" in interface.also:
        return discover(copy.module, spec=dataclasses.replace(patient.spec, takes="self"), example=patient.example)
    if interface.takes == "memory" or (interface.width, interface.width) != (
        interface.key_width,
        interface.value_width,
    ):
        raise NotApplicable("its queries and keys are not one sequence")
    return interface


def _compared(session: Session, found: Tensor, expected: Tensor, ignored: bool) -> Iterator[Finding]:
    """The prompt's last row and every step, against the last rows of the prefixes."""
    changes = [gap(expected[:, _PROMPT - 1 + i], found[:, i]) for i in range(found.shape[1])]
    wrong = [i for i, change in enumerate(changes) if change > ROUNDING]
    if not wrong:
        return
    first = _PROMPT - 1 + wrong[0]
    if wrong[0] and not ignored and _sees_only_the_first(session, first):
        yield Finding(
            "causal-corner",
            "bug",
            f"step by step ({session.how}) position {first} sees the first token and none of the {first - 1} others "
            "in the cache: "
            "the causal mask of one query and many keys is aligned with the first key",
            _ALIGN,
            sources=_CORNER,
            numbers={"first": first, "change": max(changes)},
        )
        return
    what = "the prompt of 3" if wrong[0] == 0 else f"position {first}"
    why = ". A step gives what its token gives alone: the cache is not read" if ignored else ""
    yield Finding(
        "cache-mismatch",
        "bug",
        f"step by step ({session.how}) it differs from the whole sequence from {what} on, by up to "
        f"{max(changes):.2g} of the output's "
        f"size{why}",
        "a step must see the keys and values of all tokens before, once each, and stand at its own position: the "
        "number of tokens "
        "cached",
        sources=SOURCES,
        numbers={"first": first, "change": max(changes)},
    )


def _sees_only_the_first(session: Session, position: int) -> bool:
    """Whether the step at a position depends on the first token before it, and on none of the others."""
    whole = session.steps.x

    def step(changed: int | None) -> Tensor:
        x = whole.clone()
        if changed is not None:
            x[:, changed] = x[:, changed].flip(-1) + 1
        fresh = session.anew()
        fresh.steps.x = x
        fresh.feed(0, _PROMPT)
        return [fresh.feed(n, n + 1) for n in range(_PROMPT, position + 1)][-1]

    try:
        before = step(None)
        return gap(before, step(0)) > REACHED and all(gap(before, step(n)) <= REACHED for n in range(1, position))
    finally:
        session.steps.x = whole


def _chunks(session: Session, whole: Tensor, claimed: bool) -> Iterator[Finding]:
    """Several tokens at once behind a cache: the causal mask must be aligned with the last key, or be given."""
    try:
        session = session.anew()
        session.feed(0, 2)
        found = session.feed(2, 6)
    except Exception:  # it takes single tokens only, and says so
        return
    change = gap(whole[:, 2:6], found)
    if change > ROUNDING:
        yield Finding(
            "causal-corner",
            "bug" if claimed else "risk",
            f"four tokens at once after two in the cache differ from the whole sequence by up to {change:.2g} of the "
            f"output's size; one at a time they do not{'' if claimed else ' (no mask was given)'}",
            _ALIGN,
            sources=_CORNER,
            numbers={"change": change},
        )
