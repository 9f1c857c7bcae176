"""The law that increments equal the whole: decoding with a cache gives what the whole sequence gives at once.

Each step must give the last row of its prefix, computed without a cache; several tokens at once after cached ones must
give their rows of the whole. This is tested if the kind of cache is recognised: one that forward returns and takes
again, one that forward fills in place, or one that the module keeps itself, with a start position or a flag.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from headwise.doctor.calling import claims
from headwise.doctor.calling.interface import Interface, discover
from headwise.doctor.finding import Finding, Severity, Where
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.decoding import Session, Steps, sessions
from headwise.doctor.probing.probe import REACHED, ROUNDING, awake, gap, rows, sentence
from headwise.language import Sentence

FINDINGS = ("cache-mismatch", "causal-corner", "causal-leak")

_LENGTH, _SHORT, _PROMPT = 24, 6, 3  # long enough to exceed small tables; short if the long one does not run

_ONE = re.compile(r"\b(is|are|takes|be|of) (then |always )?(one|a single|exactly one) (new )?token\b", re.IGNORECASE)

_ALIGN = (
    "align the causal mask with the last key: key <= query + (keys - queries). is_causal=True of "
    "scaled_dot_product_attention aligns with the first"
)
_STEP = (
    "a step must attend to the keys and values of all earlier tokens, once each, and use its own position: the number "
    "of cached tokens"
)
_CHUNK = (
    "each of the new tokens must see all earlier ones in its reach, those that were cached and those of its own call: "
    "store what is new without dropping what the first of them still needs"
)
_BOTH_WAYS = (
    "mask the new tokens among themselves: query i attends to keys up to i + K - Q, also where a cache is passed"
)


def check(patient: Patient) -> Iterator[Finding]:
    interface = _own_sequence(patient)
    example = (patient.example or ((), {}))[1]
    steps = Steps(interface, _LENGTH, example)
    if interface.length is not None or not (steps.caches or steps.starts or steps.flags):
        raise NotApplicable("forward takes no cache")
    sites = patient.anatomy.sites if patient.anatomy is not None else ()
    masked = sites[0].where_masked() if sites else None
    if interface.takes == "memory" or (len(sites) > 1 and not interface.causal_claim):
        _must_decode(interface)  # what a token sees of later ones would change its cached results
    for length in (_LENGTH, _SHORT):
        steps = Steps(interface, length, example)
        try:
            expected = torch.stack([steps.call(0, n)[0][:, -1] for n in range(1, length + 1)], dim=1)  # [B, N, M]
            whole = steps.call(0, length)[0]
            break
        except Exception as problem:
            if length == _SHORT:
                raise NotChecked(
                    Sentence("it does not run without a cache: {sentence}").format(sentence=sentence(problem))
                ) from problem
    for session in sessions(steps):
        try:
            outs = [session.feed(0, _PROMPT)[:, -1:], *(session.feed(n, n + 1) for n in range(_PROMPT, length))]
            alone = steps.call(_PROMPT, _PROMPT + 1)[0]
        except Exception:  # its cache is not used in this way
            continue
        ignored = gap(outs[1], alone) <= REACHED
        if ignored and not (session.handed and session.is_kept):
            continue  # an offset, for example, and no cache; or an argument that nothing is written to
        changes = [gap(expected[:, n], out[:, 0]) for n, out in enumerate(outs, _PROMPT - 1)]
        wrong = [n for n, change in enumerate(changes, _PROMPT - 1) if change > ROUNDING]
        if wrong:
            yield _of_steps(session, wrong[0], max(changes), ignored, masked)
        elif gap(expected, whole) <= ROUNDING and not _ONE.search(claims.text_of(interface.module)):
            takes_mask = any(role == "mask" for role in interface.roles.values())  # then a mask may be due
            yield from _of_chunks(session, whole, "bug" if interface.causal_claim or not takes_mask else "risk", masked)
        return
    raise NotChecked(
        Sentence("how to use its cache is not known ({why})").format(
            why=", ".join([*steps.caches, *steps.starts, *steps.flags])
        )
    )


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


def _must_decode(interface: Interface) -> None:
    """Raise NotApplicable unless earlier tokens of its own sequence, and no later ones, change a row."""
    steps = Steps(interface, _SHORT)
    try:
        before = steps.call(0, _SHORT)[0]
        steps.x = _changed(steps.x, 2)
        after = steps.call(0, _SHORT)[0]
    except Exception as problem:
        raise NotChecked(
            Sentence("it does not run without a cache: {sentence}").format(sentence=sentence(problem))
        ) from problem
    changes = rows(before, after).amax(0) if before.shape == after.shape else torch.ones(_SHORT)
    if changes[:2].max() > REACHED:
        raise NotApplicable("its tokens see later ones")
    if changes[3:].max() <= REACHED:
        raise NotApplicable("its tokens do not see one another")


def _changed(x: Tensor, token: int) -> Tensor:
    """The sequence with other numbers in one token."""
    x = x.clone()
    x[:, token] = x[:, token].flip(-1) + 1
    return x


def _of_steps(session: Session, first: int, change: float, ignored: bool, masked: Where | None) -> Finding:
    """The finding about steps that differ from position `first` on."""
    ends = [0, *range(_PROMPT, first + 2)]
    if first >= _PROMPT and not ignored:
        before = _last(session, ends)
        changes = [gap(before, _last(session, ends, changed=n)) for n in range(first)]
        if changes[0] > REACHED and max(changes[1:]) <= REACHED:
            return Finding(
                "causal-corner",
                "bug",
                Sentence(
                    "step by step ({how}) position {first} attends to the first cached token and to none of the "
                    "{others} others: the causal mask of one query and many keys is aligned with the first key"
                ).format(how=session.how, first=first, others=first - 1),
                _ALIGN,
                masked,
            )
    why = ". A step gives the output of its token alone: the cache is not used" if ignored else ""
    return Finding(
        "cache-mismatch",
        "bug",
        Sentence(
            "step by step ({how}) the output differs from that of the whole sequence, from position {first} on, by up "
            "to {change:.2g} of the output's size{why}"
        ).format(how=session.how, first=first, change=change, why=why),
        _STEP,
    )


def _last(session: Session, ends: Sequence[int], changed: int | None = None) -> Tensor:
    """The outputs of the last piece of a sequence that is fed from one end to the next, with one token changed."""
    session = session.anew()
    if changed is not None:
        session.steps.x = _changed(session.steps.x, changed)
    return [session.feed(first, last) for first, last in itertools.pairwise(ends)][-1]


def _of_chunks(session: Session, whole: Tensor, severity: Severity, masked: Where | None) -> Iterator[Finding]:
    """Several tokens at once after cached ones: the causal mask must be aligned with the last key, or be passed."""
    length = whole.shape[1]
    ends = [0, *sorted({2, 6, length // 2 + 1, length})]
    session = session.anew()
    unless = "" if severity == "bug" else " (no mask was passed)"
    for i, (first, last) in enumerate(itertools.pairwise(ends)):
        try:
            found = session.feed(first, last)
        except Exception as problem:
            raise NotChecked(
                Sentence(
                    "its cache is right one token at a time, and {last} tokens at once after {first} cached ones "
                    "raise {sentence}"
                ).format(last=last - first, first=first, sentence=sentence(problem))
            ) from problem
        change = gap(whole[:, first:last], found)
        if change <= ROUNDING:
            continue
        if gap(found[:, :-1], _last(session, ends[: i + 2], changed=last - 1)[:, :-1]) > REACHED:
            name, fix = "causal-leak", _BOTH_WAYS
            said = Sentence(
                "with its cache, {last} tokens at once after {first} cached ones attend to one another in both "
                "directions: the last of them changes the outputs of those before it{unless}"
            ).format(last=last - first, first=first, unless=unless)
        elif first:
            name, fix = ("causal-corner", _ALIGN) if i == 1 else ("cache-mismatch", _CHUNK)
            said = Sentence(
                "{last} tokens at once after {first} cached ones differ from the whole sequence by up to {change:.2g} "
                "of the output's size; one at a time they do not{unless}"
            ).format(last=last - first, first=first, change=change, unless=unless)
        else:
            continue
        yield Finding(name, severity, said, fix, None if name == "cache-mismatch" else masked)
        return
