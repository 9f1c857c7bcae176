"""What a recogniser reports (`Event`, `Refusal`), and who receives it: a `Follower`, which watches or edits a model."""

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
    """An attention or a softmax that may be one of several pieces of an attention (pieces.py)."""

    queries: Node  # the node that the queries come from
    heads: int | None
    read: Callable[[Places], Piece]
    met: object = None  # the product in which weights met values, if the model changed them before


@dataclasses.dataclass(eq=False)
class Event:
    """An attention that was recognised in a model, and how an edit changes it."""

    call: AttentionCall | None  # None = the event is one piece of a call
    out: Any  # what the model computed: a tensor, on the device "meta" if it has not run; or a tuple with it
    arrange: Arrange  # brings the output to [B, H, Q, E]
    how: str
    used: Tensor | None = None  # the weights [B, H, Q, K] that met the values, where they are not those of the call
    softmax: Softmax | None = None  # the softmax of its weights, where the model computes them
    layout: Layout | None = None  # the layout of these weights
    part: Part | None = None
    project: Callable[[Callable[[Tensor], object]], object] = lambda tell: None  # `tell` gets W_O [H, E, M]

    # Set by an edit.
    new: Tensor | None = None  # [B, H, Q, E], of another call that has run
    then: Callable[[Tensor], Tensor] | None = None  # makes the edited output from the output
    weights: Callable[[], Tensor] | None = None  # [B, H, Q, K], the weights that the model returns


class Refusal(NamedTuple):
    """Why a computation that may be attention cannot be reported as attention."""

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
        """Whether the follower may change the computation at a place (a running module)."""
        return False

    def attention(self, place: Place, event: Event) -> None:
        """Receive an attention that the model computed; or will compute, if the follower may change it."""
        raise NotImplementedError

    def refuse(self, place: Place, refusal: Refusal) -> None:
        """Receive the reason why a computation that may be attention is not reported as attention."""
        raise NotImplementedError

    def missed(self, name: str) -> None:
        """Note that the part of the model with this name ran where it could not be followed."""

    def note(self, note: str) -> None:
        """Note that the model runs in a changed way, or that some of it cannot be seen."""

    def joined(self, out: Tensor, *args: Any, **kwargs: Any) -> None:
        """Receive the result and the arguments of a `torch.cat`, after it."""

    def generated(self, beams: Tensor | None, batch: int, length: int | None) -> None:
        """Receive the end of `generate`: its beams [N, steps] of `batch` that ran, or the length of its cache."""


FOLLOWERS: Scope[Follower] = Scope()
