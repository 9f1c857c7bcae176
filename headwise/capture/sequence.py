"""One record for a whole generation: the rows of the prompt and of every decoding step; the keys are kept once.

The keys of a step are those of the previous step and a few new ones, for every kind of cache: it grows (dynamic), it is
a window that moves (sliding), or it is a buffer that fills up (static; its unfilled end was removed before). So a step
continues a sequence if its older keys are the sequence's last ones, bit by bit. In a beam search they may be those of
another beam: `_beams` holds, for each beam and each step, the example of that step that the beam goes through.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.growing import Growing
from headwise.capture.rows import MaskRows, place
from headwise.capture.steps import Step, Steps
from headwise.errors import RecordError
from headwise.records.statistics.computed import Computed


class Sequence:
    """The rows of one call site over the steps of a generation.

    Args:
        call: the first step, as it is kept.
        values: whether its values are.
        step: the first step as the model made it, with its statistics; None = there are none.
    """

    def __init__(self, call: AttentionCall, *, values: bool, step: Step | None = None) -> None:
        self._first = call
        self._statistics = None if step is None else Steps(step)
        self._versions = _versions(call)
        self._rows = Growing(call.q)
        self._keys = Growing(call.k)
        self._vals = Growing(call.v) if values else None
        self._mask = MaskRows()  # empty until there is a second step: most calls are not of a generation
        self._biases = [call.bias]
        self._beams: Tensor | None = None  # [B, steps]; None = every example continues itself

    @property
    def continued(self) -> bool:
        """Whether a step has followed the first call."""
        return len(self._biases) > 1

    def extend(self, call: AttentionCall, *, among: Tensor | None = None, step: Step | None = None) -> Tensor | None:
        """Add the rows of a step; returns which beams each example may continue, bool [B, B]; None if it is none.

        Beams with equal keys are interchangeable. Without `among` the keys grow (self-attention). With it the keys are
        those of another sequence and do not change, and `among` [B, B] is what the model's self-attention returned for
        this step.
        """
        grows = among is None
        if _kind(call) != _kind(self._first):
            return None
        if call.slopes is not None and not grows:  # the distances of each step are its own
            return None
        new = call.q.shape[2] if grows else 0
        old = call.k.shape[2] - new
        if old <= 0 or old > self._keys.length or (not grows and old != self._keys.length):
            return None
        candidates = self._candidates(call.k[:, :, :old], among)
        if not bool(candidates.any(1).all()):
            return None
        if not self._rows.owned and _versions(self._first) != self._versions:
            raise RecordError(
                "the queries or keys of the first step were changed in place before the next step, so its record would "
                "be wrong"
            )
        if not self.continued:
            self._mask.append(self._first.mask, *self._first.shape[2:], self._keys.length)
        self._follow(candidates)
        self._rows.append(call.q)
        if new:
            self._keys.append(call.k[:, :, old:])
            if self._vals is not None:
                self._vals.append(call.v[:, :, old:])
        self._mask.append(call.mask, *call.shape[2:], self._keys.length, self._beams)
        self._biases.append(call.bias)
        if self._statistics is not None and step is not None:
            self._statistics.append(step, self._keys.length, grew=grows)
        return candidates

    def call(self, beams: Tensor | None = None) -> AttentionCall:
        """All steps as one call; with `beams` [N, steps] (the row of each step's batch), of these beams."""
        first = self._first
        if not self.continued:
            return first
        rows, keys = self._origins(beams)
        q, k = self._rows.of_beams(rows), self._keys.of_beams(keys)
        v = k[..., :0] if self._vals is None else self._vals.of_beams(keys)
        mask = self._mask.mask(self._beams if beams is None else beams)
        mask = None if mask is None else mask.to(q.device)
        return dataclasses.replace(first, q=q, k=k, v=v, mask=mask, bias=self._bias(q, k, rows))

    def computed(self, beams: Tensor | None = None) -> Computed:
        """The statistics of all steps; `beams` as in `call`."""
        if self._statistics is None:
            return ()
        if not self.continued:
            return self._statistics.first
        return self._statistics.computed(self._origins(beams)[0], self._keys.length)

    def _origins(self, beams: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return self._mask.origins(self._beams if beams is None else beams.to(self._first.q.device))

    @property
    def nbytes(self) -> int:
        """What is kept, in bytes."""
        parts = (self._rows, self._keys, self._vals, self._statistics)
        return sum(part.nbytes for part in parts if part is not None)

    def _candidates(self, older: Tensor, among: Tensor | None) -> Tensor:
        """[B, B]: whether example i of a step has the keys of beam j of this sequence."""
        tail = self._keys.of_beams(self._mask.origins(self._beams)[1])[:, :, -older.shape[2] :]
        own = torch.eye(len(older), dtype=torch.bool, device=older.device)
        if (among is None or bool(among.diagonal().all())) and torch.equal(tail, older):
            return own  # the usual case: each example continues itself
        same = torch.stack([(tail == row).flatten(1).all(1) for row in older])
        return same if among is None else same & among

    def _follow(self, candidates: Tensor) -> None:
        """Let each beam continue the one that it may, best itself."""
        own = torch.arange(len(candidates), device=candidates.device)
        stays = bool(candidates.diagonal().all())
        if self._beams is None and stays:
            return
        before = own[:, None].expand(-1, len(self._biases)) if self._beams is None else self._beams
        parents = own if stays else candidates.int().argmax(1)
        self._beams = torch.cat([before[parents], own[:, None]], dim=1)

    def _bias(self, q: Tensor, k: Tensor, rows: Tensor | None) -> Tensor | None:
        tiles = [None if x is None else x[(None,) * (4 - x.ndim)] for x in self._biases]
        known = [x for x in tiles if x is not None]
        if not known:
            return None
        width = 1 if all(x.shape[3] == 1 for x in known) else k.shape[2]
        return place(tiles, self._mask.steps, known[0].new_zeros(1, 1, q.shape[2], width), rows)


def _versions(call: AttentionCall) -> list[int]:
    return [x._version for x in (call.q, call.k, call.v) if not x.is_inference()]


def _kind(call: AttentionCall) -> tuple[Hashable, ...]:
    """What all steps have in common."""
    heads = (None if x is None else tuple(x.tolist()) for x in (call.slopes, call.sinks))
    return (call.scale, call.softcap, *heads, call.q.dtype, call.q.shape[:2], call.q.shape[3], call.k.shape[1])
