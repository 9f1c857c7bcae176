"""What a recogniser tells (`Event`), and whom (`Follower`): those that watch or edit the attention of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.generating import Generating
from headwise.capture.layout import Layout
from headwise.capture.ledger import Softmax
from headwise.capture.parts import Parts
from headwise.capture.sites import Place
from headwise.records.coverage import Status
from headwise.scope import Scope

if TYPE_CHECKING:
    from headwise.capture.pieces import Piece
    from headwise.capture.tape import Node, Places

Arrange = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True)
class Part:
    """An attention, or a softmax, among those of the same queries, of which it may be a piece (pieces.py)."""

    queries: Node  # what they come from
    heads: int | None
    read: Callable[[Places], Piece]
    met: object = None  # the product in which weights met values, if the model changed them before


@dataclasses.dataclass(eq=False)
class Event:
    """An attention that was recognised, and how an edit changes it."""

    call: AttentionCall | None  # None = it is a piece of one
    out: Any  # what the model computed: a tensor, on the device "meta" if it has not run; or a tuple with it
    arrange: Arrange  # brings the output to [B, H, Q, E]
    how: str
    used: Tensor | None = None  # the weights [B, H, Q, K] that met the values, where they are not those of the call
    softmax: Softmax | None = None  # of its weights, where the model computes them
    layout: Layout | None = None  # of these
    part: Part | None = None
    project: Callable[[Callable[[Tensor], object]], object] = lambda tell: None  # `tell` gets W_O [H, E, M]

    # What an edit sets.
    new: Tensor | None = None  # [B, H, Q, E], of another call that has run
    then: Callable[[Tensor], Tensor] | None = None  # makes another output of the output
    weights: Callable[[], Tensor] | None = None  # [B, H, Q, K], those that the model returns


class Refusal(NamedTuple):
    """Why what may be attention cannot be told of as such."""

    reason: str
    status: Status = "refused"
    where: str = ""  # the file and the line
    softmax: Softmax | None = None
    queries: Node | None = None  # others of these, which may be pieces, cannot be told of either
    name: str | None = None  # that it was given before


class Follower:
    """Somebody who follows a model. What does not matter to a follower it leaves as it is here."""

    parts: Parts  # of its model
    generating: Generating
    needs_values: bool
    changes = False  # whether it may change outputs

    def means(self, place: Place) -> bool:
        """Whether it may change what a place computes."""
        return False

    def attention(self, place: Place, event: Event) -> None:
        """An attention of the model was computed; if it may change it, perhaps it is about to be."""
        raise NotImplementedError

    def refuse(self, place: Place, refusal: Refusal) -> None:
        """What may be attention cannot be told of as such."""
        raise NotImplementedError

    def missed(self, name: str) -> None:
        """A part of the model of this name ran where it could not be followed."""

    def note(self, note: str) -> None:
        """Something is changed in how the model runs, or cannot be seen."""

    def joined(self, out: Tensor, *args: Any, **kwargs: Any) -> None:
        """`torch.cat` was called."""

    def generated(self, beams: Tensor | None, batch: int, length: int | None) -> None:
        """`generate` has ended: with these beams [N, steps] of the `batch` that ran, or with a cache of this length."""


FOLLOWERS: Scope[Follower] = Scope()
