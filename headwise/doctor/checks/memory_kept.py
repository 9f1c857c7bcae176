"""What a memory keeps that a call returns and the next one takes: the states of the latest tokens, not of the first.

Segments are read one after the other, each with the memory that the one before returned, until it grows no more. Then
the last token of the segment before must change what the next segment gives (Dai et al. 2019; Parisotto et al. 2020).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from headwise.doctor.calling.claims import text_of_all
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap, moved

FINDINGS = ("oldest-kept", "cache-mismatch")

_NAME = re.compile(r"^(prev(ious)?_?|past_?)?(mem|mems|memory|memories)$")
_XL = re.compile(r"Transformer[- ]?XL|XLNet|\bTr?XL\b|GTrXL|segment[- ]level recurrence", re.IGNORECASE)
_TOKENS, _MOST = 6, 24  # of a segment, and segments


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    way = probe.interface.way
    taken = {name for _, name in way.slots} | {name for name, _ in way.extras}
    name = next((x for x in probe.interface.roles if _NAME.match(x) and x not in taken), None)
    if name is None or way.takes != "self" or probe.interface.length:
        raise NotApplicable("it takes no memory that a call may leave out")
    segments = [probe.interface.inputs(1, _TOKENS, _TOKENS, seed=seed) for seed in range(3)]
    yield from _of_two_segments(patient, probe, name)
    count = _until_full(probe, name, segments[0])
    if count is None:
        raise NotChecked(f"no call returns a {name} that the next one takes and that grows to some length")
    sequence = [segments[1], *[segments[0]] * count, segments[0]]
    first, latest = [moved(segments[1], 0), *sequence[1:]], [*sequence]
    latest[-2] = moved(segments[0], 0, _TOKENS - 1)
    plain, by_first, by_latest = (_last(probe, name, x) for x in (sequence, first, latest))
    if gap(plain, by_latest) <= REACHED < gap(plain, by_first):
        yield Finding(
            "oldest-kept",
            "bug",
            f"after {count + 1} segments of {_TOKENS} tokens, each with the {name} of the one before, the first one "
            "still changes the output, and the last token of the segment before does not: the oldest tokens are kept",
            f"keep the end: torch.cat([{name}, h], dim=1)[:, -length:]",
            patient.where,
            numbers={"segments": float(count + 1)},
        )


def _of_two_segments(patient: Patient, probe: Probe, name: str) -> Iterator[Finding]:
    """Whether two segments, the second with the memory of the first, give what one call gives for both (Transformer-XL:
    states of the segment before stand in the place of its tokens).
    """
    if not _XL.search(text_of_all(patient.module)):
        return
    both = probe.interface.inputs(2, 2 * _TOKENS, 2 * _TOKENS)
    try:
        whole = probe.output(both).detach()
        first, memory = _step(probe, name, both.each(lambda x: x[:, :_TOKENS]), None)
        second, _ = _step(probe, name, both.each(lambda x: x[:, _TOKENS:]), memory)
    except Exception:
        return
    if _length(memory) != _TOKENS or gap(whole[:, :_TOKENS], first) > ROUNDING:
        return  # only a part is kept, or the first segment sees the second one
    change = gap(whole[:, _TOKENS:], second)
    if change > ROUNDING:
        yield Finding(
            "cache-mismatch",
            "bug",
            f"two segments of {_TOKENS} tokens, the second with the {name} that the first returned, differ from one "
            f"call with both by up to {change:.2g} of the output's size: a state in {name} does not stand for its "
            "token",
            f"treat the states in {name} as those of the segment: the same norm, positions that go on, and a causal "
            "mask that ends with the last key",
            patient.where,
            numbers={"change": change},
        )


def _step(probe: Probe, name: str, x: Inputs, memory: Any) -> tuple[Tensor, Any]:
    """The output for a segment, and the memory that is returned."""
    result = probe.run(x) if memory is None else probe.run(x, given={name: memory})
    raw = result.raw
    returned = raw[1] if isinstance(raw, (tuple, list)) and len(raw) > 1 else None
    return result.output.detach(), returned


def _length(memory: Any) -> int | None:
    """Tokens in a memory of tensors [B, N, M]."""
    tensors = [x for x in tree_leaves(memory) if isinstance(x, Tensor) and x.ndim == 3]
    return tensors[0].shape[1] if tensors else None


def _until_full(probe: Probe, name: str, x: Inputs) -> int | None:
    """After how many segments the memory no longer grows."""
    memory, before = None, None
    for count in range(_MOST):
        try:
            _, memory = _step(probe, name, x, memory)
        except Exception:
            return None
        length = _length(memory)
        if length is None:
            return None
        if length == before:
            return count
        before = length
    return None


def _last(probe: Probe, name: str, segments: Sequence[Inputs]) -> Tensor:
    """The output of the last segment."""
    memory, out = None, torch.empty(0)
    for x in segments:
        out, memory = _step(probe, name, x, memory)
    return out
