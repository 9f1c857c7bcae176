"""After an edit has changed the output of an attention, edits its weights too, where the model uses or returns them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.capture.layout import Layout
from headwise.capture.ledger import Softmax
from headwise.capture.trail import Trails, at_home
from headwise.errors import EditRefused


class Rewriting:
    """The softmaxes whose attention outputs were edited in a pass of the model, with their edited weights."""

    def __init__(self, trails: Trails) -> None:
        self._trails = trails
        self._edited: dict[Softmax, tuple[Layout, Callable[[], Tensor]]] = {}  # the layout, the weights

    def __bool__(self) -> bool:
        return bool(self._edited)

    def __contains__(self, of: Softmax) -> bool:
        return of in self._edited

    def add(self, of: Softmax, layout: Layout, weights: Callable[[], Tensor]) -> None:
        """Note that the attention output of a softmax was edited; `weights` returns its edited weights [B, H, Q, K]."""
        self._edited[of] = layout, weights

    def forget(self) -> None:
        """Forget all softmaxes: the model has returned, and nobody can ask for its weights any more."""
        self._edited.clear()

    def touches(self, args: Sequence[Any]) -> bool:
        """Return whether weights whose attention output was edited are among these arguments."""
        known = self._trails.known
        return any(id(x) in known and known[id(x)][1].of in self._edited for x in args)

    def rewritten(self, x: Any) -> Any:
        """Return the edited weights if `x` are weights whose attention output was edited; otherwise return `x`."""
        trail = self._trails.get(x) if isinstance(x, Tensor) and id(x) in self._trails.known else None
        if trail is None or trail.of not in self._edited:
            return x
        if trail.problem or trail.used or (trail.sinks is not None and not trail.sinks_cut):
            raise EditRefused(
                f"the model returns weights that it changed before they met the values, which cannot be edited: "
                f"{trail.problem or trail.used or 'a learned sink'}"
            )
        layout, weights = self._edited[trail.of]
        return put_back(weights().to(x.dtype), x, lambda each: layout.fold(at_home(trail, each)))

    def within(self, out: Any) -> Any:
        """Put edited weights into a module's return value (into a dict in place); return it, or None if unchanged."""
        if isinstance(out, Tensor):
            new = self.rewritten(out)
            return None if new is out else new
        if isinstance(out, (tuple, list)):
            parts = [self.within(each) for each in out]
            if all(part is None for part in parts):
                return None
            whole = [each if part is None else part for each, part in zip(out, parts, strict=True)]
            return type(out)(*whole) if hasattr(out, "_fields") else type(out)(whole)
        if isinstance(out, dict):
            for key, each in list(out.items()):
                part = self.within(each)
                if part is not None:
                    out[key] = part
        return None


def put_back(new: Tensor, like: Tensor, arrange: Callable[[Tensor], Tensor]) -> Tensor:
    """Bring `new` [B, H, Q, E] to the shape and order of `like`; `arrange` would bring `like` to [B, H, Q, E]."""
    with torch.no_grad():
        places = arrange(torch.arange(like.numel(), device=new.device).view(like.shape))
        straight = places.shape == like.shape
        straight = straight and torch.equal(places.flatten(), torch.arange(like.numel(), device=new.device))
    if straight:
        return new.reshape(like.shape)
    flat = new.new_empty(like.numel())
    return flat.index_put((places.flatten(),), new.flatten()).view(like.shape)
