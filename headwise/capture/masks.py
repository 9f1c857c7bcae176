"""Turns the masks and biases that models use into the form in which records keep them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable

import torch
from torch import Tensor

from headwise import masks
from headwise.masks import Mask
from headwise.masks.additive import UNIFORM, split_additive
from headwise.masks.memo import read_contents

Found = tuple[Mask | None, Tensor | None]

# A forward pass has few distinct masks (a full and a sliding one); each is recognised once. If they are large
# together, only two are remembered: remembering one keeps its tensor and its mask alive.
REMEMBERED, LARGE = 4, 2**26  # how many, and how many bytes of all are large


class Recognised:
    """Recognises dense masks and biases (as causal, padding, …). Layers that share a tensor share the result."""

    def __init__(self) -> None:
        # (a tensor's place and contents; the tensor, so that no other one can have its place; what it is)
        self._known: deque[tuple[Hashable, Tensor, Found]] = deque(maxlen=REMEMBERED)

    def mask(self, allowed: Tensor, shape: tuple[int, ...]) -> Found:
        """Make a `Mask` of a bool tensor that broadcasts to `shape` [B, H, Q, K], True = may attend: (mask, None)."""
        return self._remember(allowed, shape, lambda: (_recognise(allowed, shape), None))

    def additive(self, bias: Tensor, shape: tuple[int, ...], scores: torch.dtype = torch.float32) -> Found:
        """Split a float tensor that is added to scores of `shape`, [B, H, Q, K], and this dtype: (mask, rest)."""
        lowest = torch.finfo(torch.promote_types(scores, bias.dtype)).min

        def find() -> Found:
            if bias.shape[-1] == 1:  # with one number per row no key is forbidden
                return None, bias
            whole = bias.expand(*bias.shape[:2], *shape[2:])
            mask, rest = masks.recognise_additive(whole)
            if mask is None and rest is whole:
                mask, rest = split_additive(whole)
                rest = bias if rest is whole else rest
            if rest is not None and lowest > UNIFORM and bool((rest <= lowest).any()):
                # With the lowest number of float16 added, the model's scores are all equal, but the scores of a record
                # are not.
                rest = rest.float().masked_fill(rest <= lowest, torch.finfo(torch.float32).min)
            return mask, rest

        return self._remember(bias, (*shape, scores), find)

    def filled(self, forbidden: Tensor, value: float, shape: tuple[int, ...]) -> Found:
        """Return (mask, bias) with the same effect as filling the scores with `value` where `forbidden` is True.

        A row that is filled completely with a finite value attends to all keys equally, as if finfo.min was added.
        """

        def find() -> Found:
            allowed = ~forbidden
            empty = ~allowed.any(-1, keepdim=True)
            if value == -torch.inf or not bool(empty.any()):
                return _recognise(allowed, shape), None
            lowest = torch.finfo(torch.float32).min
            rows = torch.zeros(empty.shape, device=empty.device).masked_fill(empty, lowest)
            return _recognise(allowed | empty, shape), rows

        return self._remember(forbidden, (*shape, value == -torch.inf), find)

    def _remember(self, x: Tensor, shape: tuple[Hashable, ...], find: Callable[[], Found]) -> Found:
        key = (shape, x.shape, x.dtype, x.device, x.data_ptr(), x.stride(), read_contents(x))
        for known, _, found in self._known:
            if known == key:
                return found
        found = find()
        self._known.append((key, x.detach(), found))
        while len(self._known) > 2 and sum(known.untyped_storage().nbytes() for _, known, _ in self._known) > LARGE:
            self._known.popleft()
        return found


def _recognise(allowed: Tensor, shape: tuple[int, ...]) -> Mask | None:
    return masks.recognise(allowed.expand(*allowed.shape[:2], *shape[2:]))
