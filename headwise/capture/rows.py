"""The mask of a generation, from the masks of its steps, in linear size where possible.

Nearly always it is causal, or a window, and padding. This is assumed and compared with every step. From the first step
that differs, the masks of the steps are kept.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise import masks
from headwise.errors import RecordError
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.masks.mask import And

_OWN_MASKS = "a beam search is recorded only if its examples share their mask, except for padding"


class MaskRows:
    """The mask of a sequence whose rows arrive step by step."""

    def __init__(self, mask: Mask | None, q_len: int, k_len: int) -> None:
        self.steps = [(q_len, k_len, k_len)]  # (queries, keys they may see, all keys so far) of each step
        self._first = mask
        self._grows: bool | None = None  # whether the keys grow (self) or stay (cross): from the second step on
        self._left: int | None = None  # the left size of the window, if there is one
        self._real: Tensor | None = None  # [B, K], False for padding; None = no padding
        self._kept: list[tuple[Mask | None, int, int, int]] | None = (
            None  # the masks of the steps, if the assumption failed
        )

    def append(self, mask: Mask | None, q_len: int, k_len: int, total: int) -> None:
        """Add a step of `q_len` queries that may see the last `k_len` of now `total` keys."""
        q_before, k_before = sum(q for q, _, _ in self.steps), self.steps[-1][2]
        if self._grows is None:
            self._grows = total > k_before
            self._assume()
        self.steps.append((q_len, k_len, total))
        if self._kept is None:
            before = (self._left, self._real)
            if self._agrees(mask, q_len, k_len, k_before, total):
                return
            self._left, self._real = before
            self._kept = [(self._assumed(k_before - q_before, self._real), q_before, k_before, k_before)]
        self._kept.append((mask, q_len, k_len, total))

    def reorder(self, parents: Tensor) -> None:
        """Reorder the batch to the examples `parents` (beam search)."""
        if self._real is not None and len(self._real) > 1:
            self._real = self._real[parents]
        kept = self._kept if self._kept is not None else [(self._first, 0, 0, 0)]
        if any(mask is not None and mask.batch for mask, *_ in kept) and self._real is None:
            raise RecordError(_OWN_MASKS)

    def mask(self, q_len: int, k_len: int) -> Mask | None:
        """The mask of all rows so far."""
        if len(self.steps) == 1:
            return self._first
        if self._kept is None:
            return self._assumed(k_len - q_len, self._real)
        parts = [part for part, *_ in self._kept if part is not None]
        lead = [max([1, *(getattr(part, name) or 1 for part in parts)]) for name in ("batch", "heads")]
        device = next((part.device for part in parts if part.device is not None), torch.device("cpu"))
        allowed = torch.zeros(*lead, q_len, k_len, dtype=torch.bool, device=device)
        row = 0
        for part, q, k, total in self._kept:
            allowed[:, :, row : row + q, total - k : total] = _cells(part, q, k, device)
            row += q
        return masks.recognise(allowed)

    def of_beams(self, mask: Mask | None, beams: Tensor, steps: list[int]) -> Mask | None:
        """The mask of the beams [N, steps]: a beam that ended early (-1) has no keys after its end.

        `mask` is that of all rows, and `steps` says how many keys there were after each step of the beams.
        """
        if mask is not None and mask.batch and self._kept is not None:
            raise RecordError(_OWN_MASKS)
        real = torch.ones(len(beams), steps[-1], dtype=torch.bool, device=beams.device)
        if self._real is not None:
            kept = self._real[:, : steps[-1]]
            real &= kept[beams[:, 0]] if len(kept) > 1 else kept
        if self._grows:
            for step in range(1, len(steps)):
                real[:, steps[step - 1] : steps[step]] &= (beams[:, step] >= 0)[:, None]
        rows = sum(q for q, _, _ in self.steps[: len(steps)])
        return self._assumed(steps[-1] - rows, None if bool(real.all()) else real)

    def _assume(self) -> None:
        q_len, k_len, _ = self.steps[0]
        parts = self._first.parts if isinstance(self._first, And) else [] if self._first is None else [self._first]
        bands = [part for part in parts if isinstance(part, Band)]
        keys = [part for part in parts if part.key_only and not part.heads]
        fits = len(bands) + len(keys) == len(parts)
        if self._grows:
            causal = len(bands) == 1 and bands[0].right == 0 and (bands[0].offset or 0) == k_len - q_len
            fits &= causal or (not bands and q_len == 1)
        else:
            fits &= not bands
        if not fits:
            self._kept = [(self._first, *self.steps[0])]
            return
        self._left = bands[0].left if bands else None
        for part in keys:
            real = _cells(part, 1, k_len, part.device)[:, 0, 0]
            self._real = real if self._real is None else self._real & real

    def _agrees(self, mask: Mask | None, q_len: int, k_len: int, k_before: int, total: int) -> bool:
        """Whether the step is as assumed. It may add padding, and it may be the first one longer than the window."""
        device = None if mask is None else mask.device
        allowed = _cells(mask, q_len, k_len, device)
        if allowed.shape[1] > 1:
            return False
        allowed = allowed[:, 0]  # [B|1, q, k]
        if self._grows:
            new = allowed[:, -1, k_len - (total - k_before) :]
            if self._real is not None or not bool(new.all()):
                old = torch.ones(1, k_before, dtype=torch.bool, device=new.device) if self._real is None else self._real
                batch = max(len(old), len(new))
                self._real = torch.cat([old.expand(batch, -1), new.expand(batch, -1)], dim=1)
        if self._real is not None and self._real.shape[1] != total:
            return False
        if self._grows and self._left is None:
            seen = int(allowed[:, -1].any(0).int().argmax()) + total - k_len  # the first key that the last row may see
            real_from = 0 if self._real is None else int(self._real.any(0).int().argmax())
            if seen > real_from:
                self._left = total - 1 - seen
                if k_before > self._left + 1:
                    return False  # earlier rows saw more
        real = None if self._real is None else self._real.to(allowed.device)
        expected = _cells(self._assumed(total - q_len, real), q_len, total, allowed.device)
        return bool((expected[:, 0] == pad(allowed, (total - k_len, 0))).all())

    def _assumed(self, offset: int, real: Tensor | None) -> Mask | None:
        band = Band(self._left, 0, offset) if self._grows else None
        keys = None if real is None else masks.padding(real)
        if band is None or keys is None:
            return keys if band is None else band
        return band & keys


def _cells(mask: Mask | None, q_len: int, k_len: int, device: torch.device | None) -> Tensor:
    """[B|1, H|1, q, k]"""
    if mask is None:
        return torch.ones(1, 1, q_len, k_len, dtype=torch.bool, device=device)
    return mask.cells(torch.arange(q_len, device=device), torch.arange(k_len, device=device))
