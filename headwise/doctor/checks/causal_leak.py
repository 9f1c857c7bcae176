"""Whether the future leaks through a causal mask: the module's own, or one that is passed.

Each token is changed in turn, and earlier rows are examined. In a module that is said to be causal they must not change
at all. A module that is not, but hides most of the future and nothing of the past, is probably meant to be causal.
Where no later token reaches a row, their number must not, either.
"""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling import causality, claims, names
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Dice
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, moved, quiet, rows
from headwise.doctor.reading.documents import documents

FINDINGS = ("causal-leak", "mask-polarity", "cache-mismatch")

_LENGTH, _LONG = 8, 48
_MOSTLY = 0.6  # share of the future that is hidden, in a module that is not said to be causal
_PAST = 0.9  # share of the past that is visible, so that a window is not taken for a causal mask
_MAY_CHANGE_IT = re.compile(
    r"causal|mask|bidirect|autoregress|decod|encod|cross|prefix|cache|incremental", re.IGNORECASE
)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    flags = [name for name in probe.interface.flags if probe.interface.roles.get(name) == "causal"]
    memory = probe.interface.takes == "memory"
    claim = probe.interface.causal_claim
    if memory and claim and not flags:
        yield from _of_a_decoder(probe, claim)
        return
    if memory and not flags:
        raise NotApplicable("its keys are a memory, which has no future")
    inputs = probe.square(length=_LENGTH)
    ways: list[tuple[str, dict[str, Any]]] = [
        *([] if memory else [(claim, {})]),
        *((f"{name}=True", {"given": {name: True}}) for name in flags),
    ]
    made = False
    for said, options in ways:
        if isinstance(probe.attempt(inputs, **options), Exception):
            continue
        made = True
        seen = probe.influence(inputs, **options)
        strict = bool(said) and not _BY_BLOCKS.search(said + " ".join(documents(probe.module)))
        drawn = causality.draws_triangle(probe.module)
        found = list(_judge(seen, said, hint=bool(options), drawn=drawn, strict=strict))
        if not (found and said == claim and flags):  # without the flag it need not be causal
            yield from found
        if not found and bool((seen.triu(1) <= REACHED).all()):
            yield from _of_the_best(probe, said, options)
            yield from _on_other_paths(probe, inputs, options)
            yield from _by_length(probe, inputs, said, options)
            return
        if found and options:
            return
    if not made:
        raise NotChecked(f"it does not run with {_LENGTH} tokens")


def _of_the_best(probe: Probe, said: str, options: dict[str, Any]) -> Iterator[Finding]:
    """The same with more tokens, where it computes the best queries or keys alone: of few tokens, all are the best."""
    if not said or "topk" not in claims.text_of_all(probe.module):
        return
    try:
        seen = probe.influence(probe.square(1, _LONG), **options)
    except Exception:  # it does not run with so many
        return
    yield from _judge(seen, said, hint=bool(options), drawn=False, strict=False)


def _of_a_decoder(probe: Probe, claim: str) -> Iterator[Finding]:
    """The queries' own sequence beside a memory, as in a decoder."""
    memory = next((slot for role, slot in probe.interface.way.slots if role != "query"), "")
    if not names.about_memory(memory):
        raise NotApplicable("its keys are a memory, which has no future")
    inputs = probe.inputs(length=_LENGTH)
    before = probe.rowwise(inputs)
    others = (moved(inputs, 0, token, queries=True).query for token in range(inputs.query.shape[1]))
    outs = (probe.output(dataclasses.replace(inputs, query=query)) for query in others)
    seen = torch.stack([rows(before, out)[0] for out in outs], dim=1)
    yield from _judge(seen, claim, hint=False, drawn=True, strict=False)


def _on_other_paths(probe: Probe, inputs: Inputs, options: dict[str, Any]) -> Iterator[Finding]:
    """It is causal when called plainly. Code with several paths often forgets the mask in one of them."""
    given = options.get("given", {})
    paths: dict[str, dict[str, Any]] = {"in train mode": {}, "with gradients enabled": {}}
    for flag, default in probe.interface.flags.items():
        if flag not in given and not _MAY_CHANGE_IT.search(flag):
            paths[f"with {flag}={not default}"] = {flag: not default}
    for name, more in paths.items():
        try:
            seen = _seen(probe, inputs, {**given, **more}, train=name == "in train mode", grad="gradients" in name)
        except Exception:  # it cannot be called this way
            continue
        future = seen.triu(1)
        if bool((future > REACHED).any()) and bool((seen.tril() > REACHED).any()):
            pairs = int((future > REACHED).sum())
            yield Finding(
                "causal-leak",
                "bug",
                f"{name} {pairs} of {_LENGTH * (_LENGTH - 1) // 2} future tokens reach an earlier row, by up to "
                f"{float(future.amax()):.2g} of the output's size; otherwise it is causal",
                "build the causal mask on every path: is_causal=True of a fused kernel is lost where another path is "
                "taken",
                numbers={"pairs": pairs, "change": float(future.amax())},
            )
            return


_FROM_THE_END = re.compile(
    r"\b(counted|count|numbered|number|measured|relative|distance)\b[^.]{0,40}"
    r"\b(from|to) the (end|last|latest|newest|most recent)\b"
    r"|\bcounted? (back(wards?)?|in reverse)\b|\bright[- ]align|\bleft[- ]pad|\bpadded (on|at|to|from) the left",
    re.IGNORECASE,
)


def _by_length(probe: Probe, inputs: Inputs, said: str, options: dict[str, Any]) -> Iterator[Finding]:
    """The tokens that follow do not reach an earlier row, but their number may: a prompt that is split off the end."""
    if _FROM_THE_END.search(claims.text_of(probe.module)):
        return  # as it is meant
    whole = probe.output(inputs, **options)
    for n in range(2, _LENGTH):
        part = inputs.each(operator.itemgetter((slice(None), slice(n))))
        out = probe.attempt(part, **options)
        if not isinstance(out, Tensor) or out.shape[1] != n or not _given_alike(probe, inputs, part):
            return
        change = rows(whole[:, :n], out)
        if float(change.amax()) > ROUNDING:
            row = int(change.amax(0).gt(ROUNDING).nonzero()[0])
            caches = bool(re.search(r"cache|past", claims.text_of(probe.module), re.IGNORECASE))
            yield Finding(
                "cache-mismatch" if caches else "causal-leak",
                "bug" if said or caches or _shifts(probe) else "risk",
                f"position {row} of {n} tokens gives another output than with {_LENGTH - n} tokens after them, by up "
                f"to {float(change.amax()):.2g} of the output's size. What these tokens are makes no difference; how "
                "many there are does",
                "count positions from the start of the sequence, in a prompt and in single steps alike, and use "
                "nothing that depends on the length",
                numbers={"row": float(row), "change": float(change.amax())},
            )
            return


def _shifts(probe: Probe) -> bool:
    """Whether it shifts scores of relative positions, which are the same for every length."""
    text = claims.text_of_all(probe.module)
    return bool(re.search(r"rel\w*_shift", text)) and not re.search(r"\blog\(|ntk|yarn|dynamic", text, re.IGNORECASE)


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

    way = probe.interface.way
    return all(alike(*(make(way.sizes(x)) for x in (inputs, part))) for _, make in way.extras)


def _seen(probe: Probe, inputs: Inputs, given: dict[str, Any], *, train: bool, grad: bool) -> Tensor:
    """[Q, K]: how far each row changes with each token, in a mode; dropout keeps everything."""
    probe.module.train(train)
    outs = []
    try:
        for x in (inputs, *(moved(inputs, 0, key) for key in range(inputs.key_length))):
            with quiet(), Dice(still=True):
                outs.append(probe.interface.run(x.each(Tensor.clone), grad=grad, given=given).output.detach())
    finally:
        probe.module.eval()
    return torch.stack([rows(outs[0], out)[0] for out in outs[1:]], dim=1)


def _judge(influence: Tensor, said: str, *, hint: bool, drawn: bool, strict: bool) -> Iterator[Finding]:
    """`hint`: it was asked to be causal by an option; `drawn`: its code makes a causal mask; `strict`: it is said to be
    causal, and nothing is said of blocks that see themselves.
    """
    n = influence.shape[0]
    ahead = torch.arange(n)[None, :] - torch.arange(n)[:, None]  # [Q, K], above 0 in the future
    reached = influence > REACHED
    future, past = reached[ahead > 0], reached[ahead < 0]
    seen, pairs = int(future.sum()), future.numel()
    backwards = seen == pairs and not past.any()
    hidden = 1 - seen / pairs
    if not seen or not (said or backwards or (hidden >= _MOSTLY and float(past.float().mean()) >= _PAST)):
        return
    why = (
        f"it says that it is causal ({said})"
        if said
        else f"it hides {hidden:.0%} of the future and nothing of the past"
    )
    largest = float(influence[ahead > 0].amax())
    numbers = {"pairs": seen, "of": pairs, "change": largest}
    if backwards:
        yield Finding(
            "mask-polarity",
            "bug",
            f"every token attends to later tokens and to no earlier one: {seen} of {pairs} future pairs, 0 of "
            f"{past.numel()} past pairs. Its causal mask is reversed",
            "mask where key > query: masked_fill(torch.triu(ones, 1), -inf), or masked_fill(tril == 0, -inf)",
            numbers=numbers,
        )
        return
    furthest = int(ahead[reached & (ahead > 0)].max())
    next_only = furthest == 1 and seen == n - 1
    which = "exactly the next token" if next_only else f"up to {furthest} tokens ahead"
    yield Finding(
        "causal-leak",
        "bug"
        if ((said or drawn) and not (hint and seen == pairs) and (strict or not _in_blocks(reached))) or next_only
        else "risk",
        f"{why}, but {seen} of {pairs} future tokens still reach an earlier row ({which}), by up to {largest:.2g} of "
        "the output's size",
        "mask every key > query before the softmax, in every head and on every code path: torch.triu(ones, "
        "diagonal=1), filled with -inf",
        numbers=numbers,
    )


_BY_BLOCKS = re.compile(
    r"\b(block|chunk|frame|patch|segment|group|stream)\w*[- ]?(wise)?[- ]?(causal|autoregress)"
    r"|\bcausal\w*\b[^.]{0,40}\b(block|chunk|frame|patch|segment|group)"
    r"|\b(within|inside|in|of) (an?|the|its|each|one|every|their)( same| own)? (block|chunk|frame|segment|group)"
    r"|\b(whole|same|own|current) (block|chunk|frame|segment|group|step)|bidirection|look[- ]?ahead|right context",
    re.IGNORECASE,
)


def _in_blocks(reached: Tensor) -> bool:
    """Whether whole blocks of tokens attend to one another and to nothing later: block-causal, perhaps on purpose."""
    n = len(reached)
    last = (reached * torch.arange(n)).amax(1)  # the last key that each query attends to
    ends = last.unique().tolist()
    same = bool((last[last] == last).all()) and bool((last >= torch.arange(n)).all())
    whole = all(bool(reached[i, : int(last[i]) + 1].logical_not().sum() <= 1) for i in range(n))  # except its own row
    sizes = [int((last == end).sum()) for end in ends]
    return same and whole and 1 < len(ends) < n and min(sizes) > 1
