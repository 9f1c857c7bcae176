"""The law: what reaches an output is what its query may see.

Each token is changed in turn. In a module that is causal, by what it states or by what it does when called plainly,
nothing later reaches a row, and neither does the number of later tokens. Every token but the last is seen by another
one, and a memory that is passed reaches something.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.calling.way import noise, tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.laws.visibility import reversed_mask
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing import masking
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, moved, rows
from headwise.doctor.reading import compare_masks
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.events import FORBIDDEN
from headwise.language import Sentence
from headwise.masks import causal

FINDINGS = ("causal-leak", "mask-polarity", "cache-mismatch", "tokens-unread", "memory-ignored")

_LENGTH = 8
_LONG = 20  # more than the usual number of heads in a small module


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    yield from (_unread if probe.interface.takes == "self" else _unread_memory)(patient, probe)
    yield from _future(patient, probe)


def _future(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """Later tokens that reach a row of a module that is causal."""
    face, said = probe.interface, patient.contract.causal
    flags = [name for name in face.flags if face.roles.get(name) == "causal"]
    memory = face.takes == "memory"
    claim = said.words if said is not None and said.so else ""
    if memory and not flags:
        slot = next((slot for role, slot in face.way.slots if role != "query"), "")
        if not claim or not names.about_memory(slot):
            raise NotApplicable("its keys are a memory, which has no future")
        yield from _judged(probe.influence(probe.inputs(length=_LENGTH), own=True), claim)
        return
    inputs = probe.square(length=_LENGTH)
    ways: list[tuple[str, dict[str, bool]]] = [] if memory else [(claim, {})]
    ways += [(f"{name}=True", {name: True}) for name in flags]
    made = False
    for words, given in ways:
        if isinstance(probe.attempt(inputs, given=given), Exception):
            continue
        made = True
        seen = probe.influence(inputs, given=given)
        found = list(_judged(seen, words, asked=bool(given)))
        if not (found and not given and flags):  # without the flag it need not be causal
            yield from found
        if not found and bool((seen.triu(1) <= REACHED).all()):
            yield from _otherwise(probe, inputs, given, asked=bool(words))
            yield from _by_length(patient, probe, inputs, words, given)
            return
        if found and given:
            return
    if not made:
        raise NotChecked(Sentence("it does not run with {length} tokens").format(length=_LENGTH))


def _judged(influence: Tensor, claim: str, *, asked: bool = False) -> Iterator[Finding]:
    """What is seen of the future by a module that says that it is causal, or that sees only the future."""
    n = len(influence)
    seen = influence > REACHED
    found = compare_masks.from_causal(seen | torch.eye(n, dtype=torch.bool))
    after = ~causal().to_bool(n)[0, 0]
    pairs, change = int((seen & after).sum()), float(influence[after].amax())
    if found.kind == "reversed":
        yield reversed_mask(None)
    elif pairs and (claim or (found.kind == "ahead" and found.by == 1)):
        why = Sentence("it says that it is causal ({claim})").format(claim=claim) if claim else "it hides what is later"
        hinted = asked and pairs == int(after.sum())  # some take an option of forward as a hint about a mask
        furthest = int(compare_masks.distances(n, n)[seen].max())
        yield Finding(
            "causal-leak",
            "risk" if hinted or found.kind == "blocks" else "bug",
            Sentence(
                "{why}, but {pairs} of {of} future tokens still reach an earlier row, up to {furthest} places "
                "ahead, by up to {change:.2g} of the output's size"
            ).format(why=why, pairs=pairs, of=int(after.sum()), furthest=furthest, change=change),
            "mask every key > query before the softmax, in every head and on every code path: torch.triu(ones, "
            "diagonal=1), filled with -inf",
        )


def _otherwise(probe: Probe, inputs: Inputs, given: dict[str, bool], *, asked: bool) -> Iterator[Finding]:
    """It is causal when called plainly. Code that may return weights often builds the mask on one path alone, and code
    that gets a mask of padding may put it in place of its own. `asked`: whether it says that it is causal.
    """
    face, ways = probe.interface, list[tuple[str, dict[str, Any]]]()
    for flag, value in face.flags.items():
        if face.roles.get(flag) == "weights-flag":
            ways.append((f"with {flag}={not value}", {flag: not value}))
    for mask in masking.each(face.masks) if asked else ():
        if mask.what == "keys" and mask.works:
            ways.append(
                (
                    Sentence("with {parameter} that hides no key").format(parameter=mask.parameter),
                    masking.given(face, mask, inputs),
                )
            )
    for words, options in ways:
        options |= given
        if isinstance(probe.attempt(inputs, given=options), Exception):
            continue
        future = probe.influence(inputs, given=options).triu(1)
        pairs = int((future > REACHED).sum())
        if pairs:
            yield Finding(
                "causal-leak",
                "bug",
                Sentence(
                    "{words} {pairs} of {of} future tokens reach an earlier row, by up to {change:.2g} of the "
                    "output's size; otherwise it is causal"
                ).format(words=words, pairs=pairs, of=_LENGTH * (_LENGTH - 1) // 2, change=float(future.amax())),
                "build the causal mask on every path: is_causal=True of a fused kernel is lost where another path is "
                "taken",
            )


def _by_length(patient: Patient, probe: Probe, inputs: Inputs, claim: str, given: dict[str, bool]) -> Iterator[Finding]:
    """Later tokens do not reach an earlier row, but their number may: a prompt that is split off the end.

    Where every row changes that sees two keys or more, something may depend on the length on purpose, such as its
    logarithm in the scale, or positions that are counted from the end. A relative position does not.
    """
    whole, changes = probe.output(inputs, given=given), {}
    for n in range(2, _LENGTH):
        part = _first(inputs, n)
        out = probe.attempt(part, given=given)
        if not isinstance(out, Tensor) or out.shape[1] != n or not _given_alike(probe, inputs, part):
            break
        changes[n] = rows(whole[:, :n], out).amax(0)
    changed = [n for n, change in changes.items() if bool((change > ROUNDING).any())]
    if not changed:
        return
    n, change = changed[0], changes[changed[0]]
    some = any(bool((changes[x][1:] <= ROUNDING).any()) for x in changed)
    wrong = claim and (some or _term_changes(patient, inputs, _first(inputs, n + 2)))
    yield Finding(
        "cache-mismatch" if claim and some else "causal-leak",
        "bug" if wrong else "risk",
        Sentence(
            "position {position} of {n} tokens gives another output than with {length} tokens after them, by up to "
            "{change:.2g} of the output's size. What these tokens are makes no difference; how many there are does"
        ).format(position=int(change.gt(ROUNDING).nonzero()[0]), n=n, length=_LENGTH - n, change=float(change.amax())),
        "count positions from the start of the sequence, in a prompt and in single steps alike, and use nothing that "
        "depends on the length",
    )


def _first(inputs: Inputs, n: int) -> Inputs:
    """The first n tokens."""
    return inputs.each(operator.itemgetter((slice(None), slice(n))))


def _term_changes(patient: Patient, inputs: Inputs, part: Inputs) -> bool:
    """Whether the scores of a part change with the length, by no common factor, and its queries and keys do not."""
    n = part.key_length
    try:
        (a,), (b,) = (look(patient, edit=lambda _, x=x: x).sites for x in (inputs, part))  # type: ignore[misc]
    except Exception:  # it has several attentions, or cannot be traced
        return False
    if a.grid is None or b.grid is None or b.scores.shape[-2:] != (n, n):
        return False
    same = a.products[..., :n, :n] - b.products
    x, y = a.scores[..., :n, :n], b.scores
    seen = (x > FORBIDDEN) & (y > FORBIDDEN) & same.isfinite()
    x, y = x[seen], y[seen]
    apart = (x - y * (x @ y) / (y @ y)).abs().amax()
    return float(same[seen].abs().amax()) <= ROUNDING < float(apart / x.abs().amax())


def _given_alike(probe: Probe, inputs: Inputs, part: Inputs) -> bool:
    """Whether the other arguments of forward begin, for more tokens, as they do for fewer."""

    def alike(long: Any, short: Any) -> bool:
        if isinstance(long, (tuple, list)):
            return all(alike(a, b) for a, b in zip(long, short, strict=True))
        if isinstance(long, Tensor):
            for dim, size in enumerate(short.shape):
                long = long.narrow(dim, 0, size)
            return bool(torch.equal(long, short))
        return True

    return all(map(alike, probe.others(inputs).values(), probe.others(part).values()))


# Too little


def _unread(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """Tokens behind some position that no other token sees: keys or a mask cut to the size of the wrong dimension.

    `mask[:, : k.shape[-2]]` cuts to the number of heads where k is [B, N, H, D], and no shape shows it.
    """
    way = probe.interface.way
    fixed = patient.example is not None and bool(way.extras)  # positions, for as many tokens
    length = probe.interface.length or (way.lengths[0] if fixed else _LONG)
    inputs = probe.interface.inputs(1, length, length)
    before, others = probe.attempt(inputs), torch.arange(length)
    if not isinstance(before, Tensor) or before.shape[:2] != (1, length) or not bool(before.isfinite().any()):
        return
    for key in range(max(0, length - 3), length):
        if bool((rows(before, probe.output(moved(inputs, 0, key)))[0] > REACHED)[others != key].any()):
            return
    last = _last_seen(probe, inputs, {})
    if last is None or any(_last_seen(probe, inputs, other) != last for other in _with_other_numbers(probe, inputs)):
        return  # no token changes the output of another, or how far it reads depends on numbers that it is given
    yield Finding(
        "tokens-unread",
        "bug",
        Sentence(
            "of {tokens} tokens, none behind position {last} changes the output of another one: the keys behind it "
            "are not read"
        ).format(tokens=length, last=last),
        "find what cuts the keys, the values or the mask: the size of another dimension, such as the number of heads",
    )


def _with_other_numbers(probe: Probe, inputs: Inputs) -> Iterator[dict[str, Tensor]]:
    """The other arguments with other numbers: a window that is predicted moves."""
    for name, x in probe.others(inputs).items():
        for seed in range(3) if isinstance(x, Tensor) and x.is_floating_point() else ():
            other = 30 * noise(*x.shape, seed=seed, dtype=x.dtype, device=x.device)
            if isinstance(probe.attempt(inputs, given={name: other}), Tensor):
                yield {name: other}


def _last_seen(probe: Probe, inputs: Inputs, given: dict[str, Tensor]) -> int | None:
    """The last position whose token changes the output of another one."""
    reached = probe.influence(inputs, given=given) > REACHED
    seen = (reached & ~torch.eye(len(reached), dtype=torch.bool)).any(0).nonzero()
    return int(seen.max()) if len(seen) else None


def _unread_memory(patient: Patient, probe: Probe) -> Iterator[Finding]:
    """A memory that changes nothing that is returned but the memory itself: no layer gets it."""
    name = next((name for role, name in patient.interface.way.slots if role in ("memory", "key")), None)
    inputs = probe.inputs()
    if name is None or patient.interface.also or isinstance(probe.attempt(inputs), Exception):
        return  # where a memory may be left out, a setting may switch off that it is attended to
    probe.answers(inputs)
    before, after = (_returned(probe, x) for x in (inputs, moved(inputs, slice(None))))
    if len(before) == len(after) and all(map(torch.equal, before, after)):
        yield Finding(
            "memory-ignored",
            "bug",
            Sentence("with other numbers in {name} the output is the same: nothing attends to it").format(name=name),
            Sentence("pass {name} on to the layers that attend to it").format(name=name),
            patient.where,
        )


def _returned(probe: Probe, inputs: Inputs) -> list[Tensor]:
    """All that is returned but the memory itself: it may reach the learned queries that come back beside the text."""
    given = [x for x in (inputs.key, inputs.value) if x is not None]
    found = (x for _, x in tensors_in(probe.run(inputs).raw))
    return [x for x in found if not any(x.shape == y.shape and torch.equal(x, y) for y in given)]
