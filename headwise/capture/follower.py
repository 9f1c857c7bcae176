"""The reports of a recogniser (`Event`, `Refusal`), and `Follower`, their receiver: it watches or edits a model."""

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
    """A softmax, or a whole attention, that may be one of several pieces of a larger attention (pieces.py)."""

    queries: Node  # the node (tape.py: how a tensor was made) of the tensor that the queries come from
    heads: int | None
    read: Callable[[Places], Piece]
    met: object = None  # the product of weights and values, if the model changed the weights before it


@dataclasses.dataclass(eq=False)
class Event:
    """An attention that was recognised in a model, and how an edit changes it."""

    call: AttentionCall | None  # None = the event is one piece of a call
    out: Any  # what the model computed: a tensor, on the device "meta" if it has not run; or a tuple with it
    arrange: Arrange  # brings the output to [B, H, Q, E]
    how: str
    used: Tensor | None = None  # the weights [B, H, Q, K] that were multiplied with values, if not the call's own
    softmax: Softmax | None = None  # the softmax of its weights, where the model computes them
    layout: Layout | None = None  # the layout of these weights
    part: Part | None = None
    project: Callable[[Callable[[Tensor], object]], object] = lambda tell: None  # `tell` gets W_O [H, E, M]

    # Set by an edit.
    new: Tensor | None = None  # [B, H, Q, E], of another call that has run
    then: Callable[[Tensor], Tensor] | None = None  # makes the edited output from the output
    weights: Callable[[], Tensor] | None = None  # [B, H, Q, K], the weights that the model returns


class Refusal(NamedTuple):
    """The reason why a computation that may be attention cannot be reported as attention."""

    reason: str
    status: Status = "refused"
    where: str = ""  # the file and the line
    softmax: Softmax | None = None
    queries: Node | None = None  # computations of the same queries may be pieces, and cannot be reported either
    name: str | None = None  # the name of the record that it had before


class Follower:
    """The interface of an object that watches or edits a model. A subclass overrides the methods that it needs."""

    parts: Parts  # the parts of its model
    generating: Generating
    needs_values: bool
    changes = False  # whether the follower may change outputs

    def means(self, place: Place) -> bool:
        """Return whether the follower may change the attention of a place (a running module)."""
        return False

    def attention(self, place: Place, event: Event) -> None:
        """Receive an attention of a place (a running module). If the follower may change it, it may not have run."""
        raise NotImplementedError

    def refuse(self, place: Place, refusal: Refusal) -> None:
        """Receive the reason why a computation that may be attention is not reported as attention."""
        raise NotImplementedError

    def missed(self, name: str) -> None:
        """Receive the name of a part of the model (a module's path) that ran where it could not be followed."""

    def note(self, note: str) -> None:
        """Receive a sentence for the user: the model runs in a changed way, or some of it cannot be seen."""

    def joined(self, out: Tensor, *args: Any, **kwargs: Any) -> None:
        """Receive the result and the arguments of a `torch.cat` of the model, after it was computed."""

    def generated(self, beams: Tensor | None, batch: int, length: int | None) -> None:
        """Receive the end of `generate`: its `beams` [N, steps], chosen of `batch`, or the `length` of its cache."""


FOLLOWERS: Scope[Follower] = Scope()
