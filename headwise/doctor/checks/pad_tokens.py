"""A mask that a module makes from its token ids: whether it hides the keys of padding, and not its queries.

`(ids != pad).unsqueeze(1).unsqueeze(3)` blanks the rows of padding, which nobody reads, and lets every other token
attend to padding. The module is called with padding at the end, and again told that another id is padding: the scores
that differ are those that the mask fills. And with more padding: the real tokens must give what they gave before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import convolving
from headwise.doctor.probing.padded_ids import pads, real_ids
from headwise.doctor.probing.probe import ROUNDING, gap, quiet
from headwise.doctor.reading.events import Softmax
from headwise.doctor.reading.trace import trace

FINDINGS = ("mask-broadcast", "masked-key-counts")

_LENGTH, _PADDED = 6, 2
_NO_ID = -1


def check(patient: Patient) -> Iterator[Finding]:
    way = patient.interface.way
    held = pads(patient.original)
    if not is_on_embeddings(patient.module) or not held:
        raise NotApplicable("it takes no token ids, or knows no padding among them")
    length = patient.interface.length or _LENGTH
    ids = real_ids(patient.original, set(held.values()), length)
    ids[:, length - _PADDED :] = min(held.values())
    given = {name: ids for _, name in way.slots if not name[0].isdigit() and "." not in name}
    try:
        told, other = (_first(patient.original, given, change) for change in (False, True))
    except Exception as error:
        raise NotChecked(f"it does not run on ids with padding: {type(error).__name__}") from None
    if told is None or other is None or told.scores.shape != other.scores.shape:
        return
    if _hides_queries(told, other, length):
        yield Finding(
            "mask-broadcast",
            "bug",
            f"the mask that it makes of its token ids fills the rows of padding ({_PADDED} of {length} queries) and no "
            "key in the other rows: every token attends to padding",
            "put the keys last: (ids != pad)[:, None, None, :] for scores [B, H, Q, K]",
            told.where,
            numbers={"rows": float(_PADDED), "of": float(length)},
        )
    elif not torch.equal(told.scores, other.scores) and not patient.interface.masks:
        yield from _by_number(patient, next(iter(given)), ids, min(held.values()))


def _hides_queries(told: Softmax, other: Softmax, length: int) -> bool:
    """Whether the mask fills the rows of padding and no others."""
    if told.scores.shape[-2:] != (length, length) or told.dims != (told.scores.ndim - 1,):
        return False
    filled = (told.scores != other.scores).flatten(0, -3).any(0)  # [Q, K]
    real = length - _PADDED
    return bool(filled[real:].all()) and not bool(filled[:real].any())


def _by_number(patient: Patient, name: str, ids: Tensor, pad: int) -> Iterator[Finding]:
    """Whether the outputs of the real tokens depend on how many tokens of padding follow them."""
    module = at_rest(patient.original).cpu()
    real = ids.shape[1] - _PADDED
    made: list[Tensor] = []  # what convolutions and RNNs give for the real tokens
    for part in convolving(module):
        part.register_forward_hook(lambda _, __, out: made.extend(_of_real(out, real)))
    longer = torch.cat([ids, torch.full_like(ids[:, :_PADDED], pad)], dim=1)
    try:
        outs = []
        for x in (ids, longer):
            with quiet(), torch.no_grad():
                out = next(t for _, t in tensors_in(module(**{name: x})) if t.is_floating_point())
            outs.append(out[:, :real] if out.ndim > 2 and out.shape[1] == x.shape[1] else out)
    except Exception as error:
        raise NotChecked(f"it does not run on ids with more padding: {type(error).__name__}") from None
    half = len(made) // 2
    if any(x.shape != y.shape or gap(x, y) > ROUNDING for x, y in zip(made[:half], made[half:], strict=False)):
        raise NotChecked("a convolution or an RNN brings the numbers of padding to real tokens")
    change = gap(*outs)
    if ROUNDING < change < torch.inf:
        yield Finding(
            "masked-key-counts",
            "bug",
            f"{_PADDED} more tokens of padding (id {pad}) after the real ones change the output by {change:.2g} of its "
            "size: padding keeps a weight",
            "set the scores of padding to -inf before the softmax; zeroing embeddings or scores is not masking",
            patient.where,
            numbers={"change": change},
        )


def _of_real(out: Any, real: int) -> list[Tensor]:
    """The tensors in what a convolution [B, C, N] or an RNN [B, N, M] returned, cut to the first tokens."""
    tensors = [x for x in tree_leaves(out) if isinstance(x, Tensor) and x.is_floating_point()]
    if isinstance(out, Tensor):
        return [x[..., :real] for x in tensors]
    return [x[:, :real] if x.ndim == 3 and x.shape[1] >= real else x for x in tensors]


def _first(module: nn.Module, given: Mapping[str, Tensor], change: bool) -> Softmax | None:
    """The first softmax of a call, in which nothing is padding if `change`."""
    twin = at_rest(module).cpu()
    for path, name in pads(twin) if change else ():
        setattr(twin.get_submodule(path), name, _NO_ID)
    run = trace(twin, (), lambda: twin(**given), lambda result: next(x for _, x in tensors_in(result)))
    return next(iter(run.softmaxes), None)
