"""Whether a masked key takes no part: the output must be that of a call without it.

Code that zeroes padding, or masks after the normalisation, hides what a key says; the key still takes its share of
each row.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.interface import Inputs, MaskInput
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import convolving, given
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, moved

FINDINGS = ("masked-key-counts",)


# Only neighbours exchange something: said in words, or by the name of the method.
_UNJOINED = re.compile(
    r"not connected|unconnected|no edge|non-?neighbou?r|without an edge|self[- ]loops?\b|\breceives\b|\bGAT\b"
    r"|graph attention|\bneighbou?rs? only|only (its |the )?neighbou?r",
    re.IGNORECASE,
)


# Positions that are spread over all tokens: with one token fewer, each of the others has another position.
_SPREAD = re.compile(
    r"linspace\([^()]*(?:\b(?:n|t|l|length|seq_len|steps)\b|\w+\.(?:size\(1\)|shape\[1\]))", re.IGNORECASE
)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    interface = probe.interface
    told = [name for name, _ in interface.way.extras]
    of_a_map = any(names.GRID.search(x) or names.simple(x) in names.SIDES for x in told)
    if (interface.length and not probe.rectangular) or not interface.batched or of_a_map:
        raise NotApplicable("its length is fixed")
    for mask in interface.masks:
        if (mask.what != "keys" and not _joins(patient, mask)) or mask.own or not mask.by_example:
            continue
        inputs = probe.inputs()
        hidden = probe.attempt(inputs, given=given(interface, mask, inputs, inputs.key_length - 1))
        if not isinstance(hidden, Tensor) or not hidden.isfinite().all():
            return
        if mask.works:
            yield from _counts(probe, mask, inputs, hidden)
        elif mask.what == "cells" or (
            (mask.shape == "B" or mask.claimed == mask.form or _named(mask)) and not _mixes(probe, inputs)
        ):
            yield from _read(probe, mask, inputs, hidden)
        return
    raise NotApplicable("it takes no mask of keys")


def _joins(patient: Patient, mask: MaskInput) -> bool:
    """Whether it says which nodes of a graph are joined, and others are said to exchange nothing."""
    if mask.what != "cells" or mask.works or not re.match(r"adj", mask.parameter):
        return False
    return _UNJOINED.search(patient.source) is not None


def _named(mask: MaskInput) -> bool:
    """Whether nothing is said but by a name that means the same everywhere."""
    return mask.claimed is None and re.fullmatch(r"attention_mask|(key_)?padding_mask", mask.parameter) is not None


def _counts(probe: Probe, mask: MaskInput, inputs: Inputs, hidden: Tensor) -> Iterator[Finding]:
    """Whether the output is another one than without the last key."""
    if _SPREAD.search(text_of_all(probe.module)):
        raise NotChecked("its positions depend on the number of tokens")
    cut = {name: x for name, x in inputs.tensors().items() if name != "query" or not probe.crosses}
    shorter = dataclasses.replace(inputs, **{name: x[:, :-1] for name, x in cut.items()})
    # Other arguments may become shorter with the keys, as positions do, or keep their length, as a question does.
    way = probe.interface.way
    whole = {name: make(way.sizes(inputs)) for name, make in way.extras if name != mask.parameter}
    numbers = [x for x in whole.values() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 2]
    if numbers and convolving(probe.module):  # earlier weights, which are made up here: not 0 at a masked key
        raise NotChecked("it convolves other numbers of the keys")
    changes = []
    for others in ({}, whole) if whole else ({},):
        without = probe.attempt(shorter, given={**others, **given(probe.interface, mask, shorter)})
        if isinstance(without, Tensor):  # without the row of the hidden token itself
            own = not probe.crosses and hidden.shape[1] > without.shape[1]
            changes.append(gap(without, hidden[:, :-1] if own else hidden))
    change = min(changes, default=0.0)
    if ROUNDING < change < float("inf"):  # else its width is that of the keys
        yield _finding(
            f"the output with the last key masked by `{mask.parameter}` differs from that without this key by "
            f"{change:.2g} of its size: what it says is hidden, but it keeps a weight",
            change,
        )


def _read(probe: Probe, mask: MaskInput, inputs: Inputs, hidden: Tensor) -> Iterator[Finding]:
    """Whether other rows change with what a token says that is padding: by its length, or by the stated polarity."""
    last = inputs.key_length - 1
    after = probe.attempt(moved(inputs, slice(None), last), given=given(probe.interface, mask, inputs, last))
    if not isinstance(after, Tensor):
        return
    if not probe.crosses and hidden.shape[1] == inputs.query.shape[1]:
        hidden, after = hidden[:, :last], after[:, :last]  # without the row of the token itself
    change = gap(hidden, after)
    if change > ROUNDING:
        yield _finding(
            f"`{mask.parameter}` joins the last token to no other, and other numbers in it change the output by "
            f"{change:.2g} of its size"
            if mask.what == "cells"
            else f"`{mask.parameter}` says that the last token is padding, and other numbers in it change the output "
            f"by {change:.2g} of its size",
            change,
        )


def _mixes(probe: Probe, inputs: Inputs) -> bool:
    """Whether such a part reads the last token: the RNN of a decoder reads the token before, and no encoder's."""
    parts = convolving(probe.module)
    read: list[Tensor] = []
    hooks = [x.register_forward_pre_hook(lambda _, given: read.append(given[0].clone())) for x in parts]
    probe.attempt(inputs)
    first = len(read)
    probe.attempt(moved(inputs, slice(None), inputs.key_length - 1))
    for hook in hooks:
        hook.remove()
    return len(read) != 2 * first or not all(map(torch.equal, read[:first], read[first:]))


def _finding(evidence: str, change: float) -> Finding:
    return Finding(
        "masked-key-counts",
        "bug",
        evidence,
        "set its scores to -inf before the softmax; zeroing embeddings, scores or weights is not masking",
        numbers={"change": change},
    )
