"""A mask that a module makes from its token ids: how it acts on the scores, and whether the source's padding is hidden.

All ids get the same embedding, so that a call with padding and a call without have the same content: their scores
differ by the mask alone. A mask of 0 and 1 that is added to them moves the scores of padding by a small number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.padded_ids import pad_of, real_ids
from headwise.doctor.probing.probe import ROUNDING, quiet, rows
from headwise.doctor.reading.events import FORBIDDEN, Softmax
from headwise.doctor.reading.trace import trace

FINDINGS = ("mask-added", "mask-broadcast", "source-unmasked")

_LENGTHS, _PADDED = (6, 8), 2  # of the queries' ids, and of the source's
_ADDED = 1.5  # a mask of 0 and 1, or of 0 and -1, moves a score by no more


def check(patient: Patient) -> Iterator[Finding]:
    slots = {role: n for role, n in patient.interface.way.slots if not n[0].isdigit() and "." not in n}
    pad = pad_of(patient.original)
    if not is_on_embeddings(patient.module):
        raise NotApplicable("it takes no token ids")
    if patient.interface.takes == "qkv" or "query" not in slots:
        raise NotApplicable("its ids are not one sequence, or a source and a target")
    longest = patient.interface.length
    lengths = {role: longest or _LENGTHS[role != "query"] for role in slots}
    real = {slots[role]: real_ids(patient.original, {pad}, n) for role, n in lengths.items()}
    last = slots.get("memory", slots["query"])  # the sequence whose keys are hidden
    padded = real | {last: real[last].clone()}
    padded[last][:, -_PADDED:] = pad
    try:
        told, other = (_softmax(patient.original, ids, real[last].shape[1]) for ids in (padded, real))
        if told is None or other is None or told.scores.shape != other.scores.shape:
            return
        moved = (told.scores - other.scores).double()
        if told.scores.shape[-1] != real[last].shape[1] or told.scores.shape[-2] != told.scores.shape[-1]:
            return
        inner, hidden = moved[..., :-_PADDED, :-_PADDED], moved[..., :-_PADDED, -_PADDED:]
        if "memory" in slots and bool((hidden <= FORBIDDEN).all()):
            yield from _source(patient.original, padded, slots, pad)
    except NotChecked:
        raise
    except Exception as error:
        raise NotChecked(f"it does not run on ids with padding: {type(error).__name__}") from None
    rows_of_padding = moved[..., -_PADDED:, :]
    if bool((rows_of_padding <= FORBIDDEN).all()) and float(hidden.abs().max()) < 1e-4:
        yield Finding(
            "mask-broadcast",
            "bug",
            f"the mask that it makes of its token ids hides every key from the {_PADDED} queries that are padding, and "
            "hides no padding from the other queries: it is laid out over the queries",
            "lay it out over the keys, [B, 1, 1, K]: (ids != padding)[:, None, None, :]",
            told.where,
        )
        return
    step = float(hidden.mean() - inner.mean())
    alike = float(max((hidden - hidden.mean()).abs().max(), (inner - inner.mean()).abs().max()))
    if 0.1 < abs(step) <= _ADDED and alike < 1e-4:
        yield Finding(
            "mask-added",
            "bug",
            f"the mask that it makes of its token ids is added to the scores as 0 and 1: the scores of padding change "
            f"by {step:+g}, and no key is hidden",
            "keep the mask boolean, or fill with -inf where it is False",
            told.where,
            numbers={"added": round(step, 4)},
        )


def _embedding(module: nn.Module, given: Mapping[str, Tensor], change: Any) -> None:
    """`change` the embeddings of the given ids, whatever table they come from."""

    def replaced(_: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
        ids = inputs[0] if inputs else None
        same = isinstance(ids, Tensor) and any(ids.shape == x.shape and torch.equal(ids, x) for x in given.values())
        changed: Tensor | None = change(ids, out) if same else None
        return changed

    for part in module.modules():
        if isinstance(part, nn.Embedding):
            part.register_forward_hook(replaced)


def _softmax(module: nn.Module, given: Mapping[str, Tensor], keys: int) -> Softmax | None:
    """The first softmax over so many keys, in a call in which all ids have the same embedding."""
    twin = at_rest(module).cpu()
    _embedding(twin, given, lambda ids, out: out[:1, :1].expand_as(out).clone() * 0 + 0.5)
    run = trace(twin, (), lambda: twin(**given), lambda result: next(x for _, x in tensors_in(result)))
    return next((x for x in run.softmaxes if x.scores.shape[-1] == keys and x.dims == (x.scores.ndim - 1,)), None)


def _source(module: nn.Module, given: dict[str, Tensor], slots: dict[str, str], pad: int) -> Iterator[Finding]:
    """Whether the source's padding, which the encoder hides, reaches the output: nobody hid it from the decoder."""

    def output(seed: int) -> Tensor:
        twin = at_rest(module).cpu()
        draw = torch.Generator().manual_seed(seed)

        def noise(ids: Tensor, out: Tensor) -> Tensor:
            return torch.where((ids == pad)[..., None], torch.randn(out.shape, generator=draw).to(out), out)

        _embedding(twin, {"source": given[slots["memory"]]}, noise)
        with quiet(), torch.no_grad():
            return next(x for _, x in tensors_in(twin(**given)))

    first, second = output(0), output(1)
    change = float(rows(first, second).max())
    if change > ROUNDING:
        yield Finding(
            "source-unmasked",
            "bug",
            f"the mask that it makes of {slots['memory']}'s ids hides padding inside the encoder, and not from the "
            f"decoder: other numbers in the padding change the output by up to {change:.2g} of its size",
            "pass cross-attention the mask of the source, too",
            numbers={"change": change},
        )
