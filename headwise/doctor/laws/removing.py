"""To hide a key is to remove it: the output is that of a call without it, whatever it holds, and for its example alone.

Code that zeroes padding, or masks after the normalisation, hides what a key says; the key still takes its share of
each row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from headwise.doctor.calling import names
from headwise.doctor.calling.interface import Inputs, MaskInput
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.listen import Calls, given_to
from headwise.doctor.probing.masking import convolving, each, given, hiding
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, moved
from headwise.doctor.reading.anatomy import look
from headwise.language import Sentence

FINDINGS = ("masked-key-counts", "masked-nan-leaks")


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    inputs = probe.inputs()
    probe.answers(inputs)
    if not probe.interface.masks:
        raise NotApplicable("it takes no mask")
    yield from _nan(probe, inputs)
    masks = [x for x in each(probe.interface.masks) if x.what == "keys" and not x.own and x.by_example]
    told = [name for name, _ in probe.interface.way.extras]
    of_a_map = any(names.GRID.search(x) or names.simple(x) in names.SIDES for x in told)
    if (probe.interface.length and not probe.rectangular) or not probe.interface.batched or of_a_map:
        raise NotChecked("its length is fixed")
    for mask in masks[:1]:
        yield from _removed(patient, probe, mask, inputs)


def _removed(patient: Patient, probe: Probe, mask: MaskInput, inputs: Inputs) -> Iterator[Finding]:
    last = inputs.key_length - 1
    options = given(probe.interface, mask, inputs, last)
    hidden = probe.attempt(inputs, given=options)
    if not isinstance(hidden, Tensor) or not hidden.isfinite().all():
        return
    if mask.works:
        change = _without(probe, mask, inputs, hidden)
        said = Sentence(
            "the output with the last key masked by `{parameter}` differs from that without this key by {change:.2g} "
            "of its size: what it says is hidden, but it keeps a weight"
        ).format(parameter=mask.parameter, change=change)
    else:
        plain = mask.claimed is None and mask.parameter in ("attention_mask", "padding_mask", "key_padding_mask")
        if mask.shape != "B" and mask.claimed != mask.form and not plain:
            return  # nobody says what its values mean
        if _mixes(probe, inputs) or _closes(patient, options, last):
            raise NotChecked(
                Sentence("{parameter}: what it hides reaches the output by another way than attention").format(
                    parameter=mask.parameter
                )
            )
        other = probe.attempt(moved(inputs, slice(None), last), given=options)
        if not isinstance(other, Tensor):
            return
        row = slice(None) if probe.crosses or hidden.shape[1] != inputs.query.shape[1] else slice(last)
        change = gap(hidden[:, row], other[:, row])
        said = Sentence(
            "`{parameter}` says that the last token is padding, and other numbers in it change the output by "
            "{change:.2g} of its size"
        ).format(parameter=mask.parameter, change=change)
    if ROUNDING < change < torch.inf:  # else its width is that of the keys
        yield Finding(
            "masked-key-counts",
            "bug",
            said,
            "set its scores to -inf before the softmax; zeroing embeddings, scores or weights is not masking",
        )


def _without(probe: Probe, mask: MaskInput, inputs: Inputs, hidden: Tensor) -> float:
    """How far the output is from that without the last key; 0 if it does not run so."""
    if probe.interface.causal_claim and probe.crosses:
        raise NotChecked("its causal mask may be aligned with the number of keys")
    cut = {name: x for name, x in inputs.tensors().items() if name != "query" or not probe.crosses}
    shorter = dataclasses.replace(inputs, **{name: x[:, :-1] for name, x in cut.items()})
    # Other arguments may become shorter with the keys, as positions do, or keep their length, as a question does.
    whole = {name: x for name, x in probe.others(inputs).items() if name != mask.parameter}
    numbers = [x for x in whole.values() if isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 2]
    if numbers and convolving(probe.module):  # earlier weights, which are made up here: not 0 at a masked key
        raise NotChecked("it convolves other numbers of the keys")
    with Calls(torch.linspace) as spread:
        probe.attempt(inputs)
    if spread.number:
        raise NotChecked("its positions depend on the number of tokens")
    changes = []
    for others in ({}, whole) if whole else ({},):
        without = probe.attempt(shorter, given={**others, **given(probe.interface, mask, shorter)})
        if isinstance(without, Tensor):  # without the row of the hidden token itself
            own = not probe.crosses and hidden.shape[1] > without.shape[1]
            changes.append(gap(without, hidden[:, :-1] if own else hidden))
    return min(changes, default=0.0)


def _mixes(probe: Probe, inputs: Inputs) -> bool:
    """Whether a convolution or an RNN reads the last token."""
    others = moved(inputs, slice(None), inputs.key_length - 1)
    usual, changed = (given_to(convolving(probe.module), partial(probe.attempt, x)) for x in (inputs, others))
    return len(usual) != len(changed) or not all(map(torch.equal, usual, changed))


def _closes(patient: Patient, options: dict[str, Tensor], last: int) -> bool:
    """Whether no attention that can be read gives the last key a weight."""
    if patient.anatomy is None:
        return False
    sites = [x for x in look(patient, given=options).sites if x.grid is not None and x.contraction is not None]
    weights = [x.weights_at_values for x in sites]
    return bool(weights) and all(
        w.shape[-1] > last and not bool(w[..., :last, last].nan_to_num().any()) for w in weights
    )


def _nan(probe: Probe, inputs: Inputs) -> Iterator[Finding]:
    """NaN in a masked key: 0 · NaN is NaN, so in most implementations it reaches the output."""

    def spoil(x: Tensor) -> Tensor:
        x = x.clone()
        x[:, 1:2] = torch.nan
        return x

    spoilt = inputs.each(spoil)
    if inputs.key is not None:
        spoilt = dataclasses.replace(spoilt, query=inputs.query)
    for options in reversed(hiding(inputs, 1)):
        usual, out = probe.attempt(inputs, **options), probe.attempt(spoilt, **options)
        if isinstance(usual, Exception) or not usual.isfinite().all() or usual.shape[:2] != inputs.query.shape[:2]:
            continue
        if isinstance(out, Tensor):
            own = torch.zeros(out.shape[:2], dtype=torch.bool)
            own[:, 1:2] = not probe.crosses  # its own query is NaN in any case
            reached = ~out.isfinite().all(-1) & ~own
            if reached.any():
                yield Finding(
                    "masked-nan-leaks",
                    "note",
                    Sentence(
                        "NaN in a key that is masked for every query makes {rows} of the {of} other rows NaN: its "
                        "weight is 0, and 0 · NaN is NaN"
                    ).format(rows=int(reached.sum()), of=int((~own).sum())),
                    "fill padding with numbers (zeros), not with uninitialised memory; or set masked values to zero "
                    "before the product",
                )
            return
