"""Whether decoding token by token with the module's own cache gives the same as the whole sequence at once.

Each step must give the last row of its prefix, computed without a cache. This is checked if the kind of cache is
recognised: one that forward returns and takes again, one that forward fills in place, or one that the module keeps
itself, with a start position.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.calling.interface import Interface, discover
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.decoding import Session, Steps, sessions
from headwise.doctor.probing.probe import REACHED, ROUNDING, awake, gap, sentence

FINDINGS = ("cache-mismatch", "causal-corner", "causal-leak")

_LENGTH, _SHORT, _PROMPT = 24, 6, 3  # long enough to exceed small tables; short if the long one does not run

_ONE = re.compile(r"\b(is|are|takes|be|of) (then |always )?(one|a single|exactly one) (new )?token\b", re.IGNORECASE)
_ALIGN = (
    "align the causal mask with the last key: key <= query + (keys - queries). is_causal=True of "
    "scaled_dot_product_attention aligns with the first"
)

_CHUNK = (
    "each of the new tokens must see all earlier ones in its reach, those that were cached and those of its own call: "
    "store what is new without dropping what the first of them still needs"
)


def check(patient: Patient) -> Iterator[Finding]:
    interface = _own_sequence(patient)
    if interface.takes == "memory":
        _decodes(interface)
    elif patient.anatomy is not None and len(patient.anatomy.sites) > 1 and not interface.causal_claim:
        _decodes(interface)  # layers that attend to the future would change the cached results of earlier tokens
    example = (patient.example or ((), {}))[1]
    steps = Steps(interface, _LENGTH, example)
    if interface.length is not None or not (steps.caches or steps.starts or steps.flags):
        raise NotApplicable("forward takes no cache")
    for length in (_LENGTH, _SHORT):
        steps = Steps(interface, length, example)
        try:
            expected = torch.stack([steps.call(0, n)[0][:, -1] for n in range(1, length + 1)], dim=1)  # [B, N, M]
            whole = steps.call(0, length)[0]
            break
        except Exception as problem:
            if length == _SHORT:
                raise NotChecked(f"it does not run without a cache: {sentence(problem)}") from problem
    for session in sessions(steps):
        try:
            outs = [session.feed(0, _PROMPT)[:, -1:], *(session.feed(n, n + 1) for n in range(_PROMPT, length))]
            alone = steps.call(_PROMPT, _PROMPT + 1)[0]
        except Exception:  # its cache is not used in this way
            continue
        ignored = gap(outs[1], alone) <= REACHED
        if ignored and not (session.handed and session.is_kept):
            continue  # an offset, for example, and no cache; or an argument that nothing is written to
        found = list(_compared(session, torch.cat(outs, dim=1), expected, ignored))
        yield from found
        if not found and gap(expected, whole) <= ROUNDING and not _ONE.search(claims.text_of(interface.module)):
            masked = any(role == "mask" for role in interface.roles.values())  # then a mask may be due
            yield from _chunks(session, whole, bool(interface.causal_claim) or not masked)
        return
    raise NotChecked(f"how to use its cache is not known ({', '.join([*steps.caches, *steps.starts, *steps.flags])})")


def _own_sequence(patient: Patient) -> Interface:
    """How to call it for self-attention."""
    copy = patient.fresh()
    awake(copy.module)
    interface = copy.interface
    if interface.takes != "self" and "self" in interface.also:
        return discover(copy.module, spec=dataclasses.replace(patient.spec, takes="self"), example=patient.example)
    if interface.takes == "memory" and len(patient.anatomy.sites if patient.anatomy else ()) > 1:
        return interface
    if interface.takes == "memory" or {interface.key_width, interface.value_width} != {interface.width}:
        raise NotApplicable("its queries and keys are not one sequence")
    return interface


def _decodes(interface: Interface) -> None:
    """Raises NotApplicable unless earlier tokens of its own sequence, and no later ones, change a row."""
    steps = Steps(interface, _SHORT)
    try:
        before = steps.call(0, _SHORT)[0]
        steps.x = steps.x.clone()
        steps.x[:, 2] = steps.x[:, 2].flip(-1) + 1
        after = steps.call(0, _SHORT)[0]
    except Exception as problem:
        raise NotChecked(f"it does not run without a cache: {sentence(problem)}") from problem
    if before.shape != after.shape or gap(before[:, :2], after[:, :2]) > REACHED:
        raise NotApplicable("its tokens see later ones")
    if gap(before[:, 3:], after[:, 3:]) <= REACHED:
        raise NotApplicable("its tokens do not see one another")


def _compared(session: Session, found: Tensor, expected: Tensor, ignored: bool) -> Iterator[Finding]:
    """The prompt's last row and every step, compared with the last rows of the prefixes."""
    changes = [gap(expected[:, _PROMPT - 1 + i], found[:, i]) for i in range(found.shape[1])]
    wrong = [i for i, change in enumerate(changes) if change > ROUNDING]
    if not wrong:
        return
    first = _PROMPT - 1 + wrong[0]
    if wrong[0] and not ignored and _sees_only_the_first(session, first):
        yield Finding(
            "causal-corner",
            "bug",
            f"step by step ({session.how}) position {first} attends to the first cached token and to none of the "
            f"{first - 1} others: the causal mask of one query and many keys is aligned with the first key",
            _ALIGN,
            numbers={"first": first, "change": max(changes)},
        )
        return
    what = "the prompt of 3 tokens" if wrong[0] == 0 else f"position {first}"
    why = ". A step gives the output of its token alone: the cache is not used" if ignored else ""
    yield Finding(
        "cache-mismatch",
        "bug",
        f"step by step ({session.how}) the output differs from that of the whole sequence, from {what} on, by up to "
        f"{max(changes):.2g} of the output's size{why}",
        "a step must attend to the keys and values of all earlier tokens, once each, and use its own position: the "
        "number of cached tokens",
        numbers={"first": first, "change": max(changes)},
    )


def _sees_only_the_first(session: Session, position: int) -> bool:
    """Whether the step at a position depends on the first of the earlier tokens and on none of the others."""
    ends = [0, *range(_PROMPT, position + 2)]
    before = _last(session, ends)
    changes = [gap(before, _last(session, ends, changed=n)) for n in range(position)]
    return changes[0] > REACHED and max(changes[1:]) <= REACHED


def _last(session: Session, ends: list[int], changed: int | None = None) -> Tensor:
    """The outputs of the last piece of a sequence that is fed from one end to the next, with one token changed."""
    fresh, whole = session.anew(), session.steps.x
    if changed is not None:
        fresh.steps.x = whole.clone()
        fresh.steps.x[:, changed] = whole[:, changed].flip(-1) + 1
    try:
        return [fresh.feed(first, last) for first, last in itertools.pairwise(ends)][-1]
    finally:
        session.steps.x = whole  # all sessions share the steps


def _chunks(session: Session, whole: Tensor, sure: bool) -> Iterator[Finding]:
    """Several tokens at once after cached ones: the causal mask must be aligned with the last key, or be passed."""
    length = whole.shape[1]
    ends = sorted({2, 6, length // 2 + 1, length})
    session = session.anew()
    for first, last in itertools.pairwise([0, *ends]):
        try:
            found = session.feed(first, last)
        except Exception:  # it takes single tokens only, or fewer at once, and raises otherwise
            return
        change = gap(whole[:, first:last], found)
        if change <= ROUNDING:
            continue
        unless = "" if sure else " (no mask was passed)"
        other = _last(session, [0, *(end for end in ends if end <= last)], changed=last - 1)
        if gap(found[:, :-1], other[:, :-1]) > REACHED:
            yield Finding(
                "causal-leak",
                "bug" if sure else "risk",
                f"with its cache, {last - first} tokens at once after {first} cached ones attend to one another in "
                f"both directions: the last of them changes the outputs of those before it{unless}",
                "mask the new tokens among themselves: query i attends to keys up to i + K - Q, also where a cache is "
                "passed",
                numbers={"change": change},
            )
            return
        if first:
            yield Finding(
                "causal-corner" if first == ends[0] else "cache-mismatch",
                "bug" if sure else "risk",
                f"{last - first} tokens at once after {first} cached ones differ from the whole sequence by up to "
                f"{change:.2g} of the output's size; one at a time they do not{unless}",
                _ALIGN if first == ends[0] else _CHUNK,
                numbers={"change": change},
            )
            return
