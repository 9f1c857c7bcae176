"""One record for a whole generation: the rows of the prompt and of every decoding step. The keys are kept only once.

The keys of a step are the keys of the previous step and a few new keys. This holds for every kind of cache: one that
grows (dynamic), a window that moves (sliding), and a buffer that fills up (static; its unfilled end was removed
before). So a step continues a sequence if its older keys equal the last keys of the sequence bit by bit, or are known
to be equal (appended.py). In a beam search the older keys may belong to another beam: `_beams` holds, for each beam and
each step, the example of the batch that the beam goes through in that step. Assisted decoding reads tokens that it then
rejects: the older keys of the next step end before the rejected ones, whose rows are removed.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.appended import Keys
from headwise.capture.growing import Empty, Growing
from headwise.capture.rows import MaskRows, place
from headwise.capture.steps import Step, Steps
from headwise.errors import RecordError
from headwise.records.statistics.computed import Computed


class Followed(NamedTuple):
    """The relation of a step to a sequence that it continued: the beams, and the rows that were rejected."""

    beams: Tensor  # bool [B, B]: which beams each example may continue
    rejected: int = 0  # how many rows of the step before were removed


class Sequence:
    """The rows (queries) of one call site (a place in a model that computes attention) over the steps of a generation.

    Args:
        call: the first step, as it is kept.
        values: whether its values are kept too.
        step: the first step as the model computed it, with its statistics; None = no statistics.
        keys: the keys of the first step, as `Appended` knows them (appended.py); None = unknown.
        empty: a function that makes room on the disk for rows, keys and values; None = they are in memory.
    """

    def __init__(
        self,
        call: AttentionCall,
        *,
        values: bool,
        step: Step | None = None,
        keys: Keys | None = None,
        empty: Empty | None = None,
    ) -> None:
        self._first, self._kind = call, _kind(call)
        self.last = keys  # the keys of the last step, as the model computed them; None = unknown
        self._statistics = Steps(step or Step(call, ()))
        self._versions = _versions(call)
        self._rows = Growing(call.q, empty)
        self._keys = Growing(call.k, empty)
        self._vals = Growing(call.v, empty) if values else None
        self._mask = MaskRows()  # empty until there is a second step: most calls do not belong to a generation
        self._biases = [call.bias]
        self._beams: Tensor | None = None  # [B, steps]; None = every example continues itself

    @property
    def continued(self) -> bool:
        """Whether a step has followed the first call, or some of its rows were removed."""
        return bool(self._mask.steps)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, Q, K)."""
        batch, heads = self._first.shape[:2]
        return batch, heads, self._rows.length, self._keys.length

    def has_keys(self, k: Tensor) -> bool:
        """Whether `k` holds all keys of the sequence."""
        return torch.equal(self._keys.tensor, k)

    def extend(
        self,
        call: AttentionCall,
        *,
        among: Followed | None = None,
        step: Step | None = None,
        rejects: bool = False,
        keys: Keys | None = None,
    ) -> Followed | None:
        """Add the rows of a step; return how the step continues the sequence, or None if it does not continue it.

        Beams with equal keys are interchangeable. Without `among` the keys grow (self-attention). With `among` the keys
        belong to another sequence and do not change (cross-attention); `among` is what this method returned for the
        model's self-attention in this step. With `rejects`, rows of the step before, except its first, may have been
        rejected. `keys` are the keys of the step, as `Appended` knows them.
        """
        grows = among is None
        if _kind(call) != self._kind:
            return None
        if call.slopes is not None and not grows:  # each step has other distances
            return None
        new = call.q.shape[2] if grows else 0
        old = call.k.shape[2] - new
        if old <= 0 or old > self._keys.length or (not grows and old != self._keys.length):
            return None
        rejected = 0 if among is None else among.rejected
        candidates = self._own
        if not self._is_known(keys, old, among):
            older = call.k[:, :, :old]
            candidates = self._candidates(older, among)
            if not bool(candidates.any(1).all()):
                rejected = self._rejected(older) if grows and rejects else 0
                if not rejected:
                    return None
                candidates = self._own
        if rejected and not self.cut(rejected, rejected if grows else 0):
            return None
        if not self._rows.owned and _versions(self._first) != self._versions:
            raise RecordError(
                "the queries or keys of the first step were changed in place before the next step, so its record would "
                "be wrong"
            )
        self._begin()
        self._follow(candidates)
        self._rows.append(call.q)
        if new:
            self._keys.append(call.k[:, :, old:])
            if self._vals is not None:
                self._vals.append(call.v[:, :, old:])
        self._mask.append(call.mask, *call.shape[2:], self._keys.length, self._beams)
        self._biases.append(call.bias)
        if self.last is not None and self.last is not keys:
            self.last.older = None  # otherwise each step would keep all earlier steps alive
        self.last = keys
        if step is not None:
            self._statistics.append(step, self._keys.length, grew=grows)
        return Followed(candidates, rejected)

    def _begin(self) -> None:
        if not self.continued:
            self._mask.append(self._first.mask, *self._first.shape[2:], self._keys.length)

    def cut(self, rows: int, keys: int) -> bool:
        """Remove the last rows and keys, all of the last step. False, and no change, if other rows attend to them."""
        self._begin()
        whole = self._rows.tensor.shape[-1] > 0  # without queries, a row's statistics are from its own step
        if not self._mask.cut(rows, keys, unseen=whole):
            return False
        self.last = None
        q_len, k_len, _ = self._mask.steps[-1]
        self._rows.cut(rows)
        for part in (self._keys, *([] if self._vals is None else [self._vals])):
            part.cut(keys)
        bias = self._biases[-1]
        if bias is not None and bias.ndim > 1:
            bias = bias[..., : q_len if bias.shape[-2] > 1 else 1, :]
        if bias is not None and bias.ndim:
            bias = bias[..., : k_len if bias.shape[-1] > 1 else 1]
        self._biases[-1] = bias
        self._statistics.cut(rows)
        return True

    def _rejected(self, older: Tensor) -> int:
        """Return how many rows of the last step were rejected: the rows after the end of the next step's older keys."""
        length, last = self._keys.length, (self._mask.steps[-1][0] if self.continued else self._rows.length)
        if self._beams is not None or last < 2:
            return 0
        kept = self._keys.tensor[:, :, length - last : length - 1]  # the first row of a step is never rejected
        ends = (kept == older[:, :, -1:]).all(-1).all(1).all(0).nonzero().flatten().tolist()
        for end in reversed(ends):
            stop = length - last + end + 1
            if stop >= older.shape[2] and torch.equal(self._keys.tensor[:, :, stop - older.shape[2] : stop], older):
                return length - stop
        return 0

    def call(self, beams: Tensor | None = None) -> AttentionCall:
        """Make one attention call of all steps.

        With `beams` [N, steps] the call is of N beams: the table says which example of each step belongs to each beam.
        """
        first = self._first
        if beams is not None:
            self._begin()
        if not self.continued:
            return first
        rows, keys = self._origins(beams)
        q, k = self._rows.of_beams(rows), self._keys.of_beams(keys)
        v = k[..., :0] if self._vals is None else self._vals.of_beams(keys)
        mask = self._mask.mask(self._beams if beams is None else beams)
        mask = None if mask is None else mask.to(q.device)
        return dataclasses.replace(first, q=q, k=k, v=v, mask=mask, bias=self._bias(q, k, rows))

    def computed(self, beams: Tensor | None = None) -> Computed:
        """Return the statistics of all steps; `beams` is the same as in `call`."""
        if beams is not None:
            self._begin()
        if not self.continued:
            return self._statistics.first
        rows, keys = self._origins(beams)
        return self._statistics.computed(rows, self._keys.length if keys is None else keys.shape[1])

    def _origins(self, beams: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        return self._mask.origins(self._beams if beams is None else beams.to(self._first.q.device))

    @property
    def nbytes(self) -> int:
        """The size of everything that is kept, in bytes."""
        parts = (self._rows, self._keys, self._vals, self._statistics)
        return sum([part.nbytes for part in parts if part is not None])

    def _is_known(self, keys: Keys | None, old: int, among: Followed | None) -> bool:
        """Return whether the older keys are known, without comparing, to be the last step's, example by example."""
        if keys is None or self.last is None:
            return False
        if among is None:
            return keys.older is self.last and keys.begin == old
        return keys is self.last and bool(among.beams.diagonal().all())

    def _candidates(self, older: Tensor, among: Followed | None) -> Tensor:
        """Find which beams each example of a step may continue: [B, B], True = example i has the keys of beam j."""
        tail = self._keys.of_beams(self._mask.origins(self._beams)[1])[:, :, -older.shape[2] :]
        if (among is None or bool(among.beams.diagonal().all())) and torch.equal(tail, older):
            return self._own  # the usual case: each example continues itself
        same = torch.stack([(tail == row).flatten(1).all(1) for row in older])
        return same if among is None else same & among.beams

    @functools.cached_property
    def _own(self) -> Tensor:
        """The bool matrix [B, B] with True on the diagonal: each example continues itself."""
        k = self._first.k
        return torch.eye(len(k), dtype=torch.bool, device=k.device)

    def _follow(self, candidates: Tensor) -> None:
        """Let each beam continue one of the beams that `candidates` allows, preferably itself."""
        stays = candidates is self._own or bool(candidates.diagonal().all())
        if self._beams is None and stays:
            return
        own = torch.arange(len(candidates), device=candidates.device)
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
    """Return the properties of a call (scale, softcap, dtype, sizes, …) that all steps of a sequence must share."""
    heads = (None if x is None else tuple(x.tolist()) for x in (call.slopes, call.sinks))
    return (call.scale, call.softcap, *heads, call.q.dtype, call.q.shape[:2], call.q.shape[3], call.k.shape[1])
