"""What a statistic is: a name, a unit, a sentence, and how it is found tile by tile."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from headwise.call import Scores, Share

if TYPE_CHECKING:
    from headwise.records.statistics.part import Part, WeightTile


@dataclasses.dataclass(frozen=True)
class Column:
    """How a statistic becomes one number for each head, in the summary and on the page.

    By default the number is the mean over the queries that attend to anything. A field that is empty is taken from the
    statistic.
    """

    heading: str = ""  #: in the table of the summary; empty = the statistic is on the page only
    name: str = ""  #: in a row of the summary, a CSV file, and the facts of the page
    title: str = ""  #: on the page; empty = the name, with blanks
    unit: str = ""
    sentence: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: of the statistic
    values: Callable[[Any], Tensor] = lambda answer: answer  #: from the answer to one value for each query, [B, H, Q]
    largest: bool = False  #: take the largest value, not the mean
    within_sequence: bool = False  #: without meaning (NaN) where queries and keys are two sequences: distances

    def over(self, answer: Any, attends: Tensor, dims: tuple[int, ...]) -> Tensor:
        """The number, float64, over these dimensions of [B, H, Q]. `attends` says which queries attend to anything."""
        values = self.values(answer).double().masked_fill(~attends, 0.0)
        return values.amax(dims) if self.largest else values.sum(dims) / attends.sum(dims)


class Statistic:
    """One statistic of the weights. To add one, derive from this class, and `register` it.

        @headwise.records.statistics.register
        class Highest(Statistic):
            name = "highest"
            unit = "share"
            sentence = "The largest weight of a query."
            column = Column("highest")

            def update(self, tile):
                self.answer[:, tile.rows] = tile.weights.amax(-1)

    A statistic with options is a dataclass: its fields are the options, `__post_init__` checks them. One pass over the
    weights asks every statistic. It goes through parts, which are n heads of one example each, on several threads; for
    each part a copy of the statistic is asked, so what it notes of a part goes into attributes of its own.
    """

    name: ClassVar[str]  #: an identifier
    unit: ClassVar[str]  #: "nats", "tokens", "share" (0 to 1), "keys", or any other
    sentence: ClassVar[str]  #: what it says, for people
    column: ClassVar[Column | None] = None  #: None = neither in the summary nor on the page
    overwrites: ClassVar[Literal["", "scores", "weights"]] = ""  #: what `update` changes of a tile; it is asked last

    native: ClassVar[tuple[str, ...]] = ()  #: what of `headwise.native.attend.look` `of_rows` needs; () = only tiles do

    #: What the answers to the steps of a generation are in the answer to all of its rows: "rows" (they stand one after
    #: the other), "keys" (the sum over the steps, for each key), or "" (the one does not follow from the others).
    of_steps: ClassVar[Literal["", "rows", "keys"]] = ""

    #: The same of processes that share a sequence (`Scores.share`), each with some of its rows: "rows", or "sum" or
    #: "max" of answers that all have the shape of the whole's (`in_whole`), or "" (it does not follow from theirs).
    of_shares: ClassVar[Literal["", "rows", "sum", "max"]] = ""
    nothing: ClassVar[float] = 0.0  #: the answer to an empty row

    part: Part  #: which heads
    answer: Any  #: to write to: the part of `empty` that belongs to these heads, [n, ...]

    def __init_subclass__(cls) -> None:
        # What is said of a class need not hold for one that changes it.
        cls.native, cls.of_steps = vars(cls).get("native", ()), vars(cls).get("of_steps", "")
        cls.of_shares = vars(cls).get("of_shares", "")

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        """The shape of the answer after B and H; by default one number for each query, [Q]."""
        return (q_len,)

    def empty(self, call: Scores) -> Any:
        """The answer where no query attends to anything, [B, H, *shape]: 0. A pass visits only those that do."""
        batch, heads, q_len, k_len = call.shape
        return torch.zeros((batch, heads, *self.shape(q_len, k_len)), dtype=call.dtype, device=call.q.device)

    def of(self, part: Part, answer: Any) -> Statistic:
        """A copy that is asked about one part."""
        one = copy.copy(self)
        one.part = part
        one.answer = mapped(lambda x: x[part.b, part.heads], answer)
        one.begin()
        return one

    def begin(self) -> None:
        """Called before the first tile."""

    def update(self, tile: WeightTile) -> None:
        """Called for each tile, in the order of the rows."""

    def finish(self) -> None:
        """Called after the last tile."""

    def native_options(self, call: Scores) -> dict[str, Any] | None:
        """Those of `headwise.native.attend.look`; None = it cannot be found so."""
        return {}

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Any:
        """The answer, as the tiles would give it, from what `headwise.native.attend.look` found."""
        return rows[self.native[0]]

    def found_in(self, other: Statistic, answer: Any) -> Any | None:
        """This answer, from that of another one of its class; None if that does not hold it. By default: the same."""
        return answer if vars(self) == vars(other) else None

    # With `of_shares`.

    def for_share(self) -> Statistic:
        """What each process is asked where the answer to the whole is wanted."""
        return self

    def in_whole(self, answer: Any, share: Share) -> Any:
        """The answer of a process, with keys as those of the whole."""
        return answer

    # With `of_steps` = "rows".

    def of_step(self, call: Scores, answer: Any, before: int) -> tuple[Tensor, ...]:
        """What `join` needs of a step whose first key has `before` others before it: tensors [B, H, Q, ·]."""
        return (answer if len(self.shape(1, 1)) > 1 else answer[..., None],)

    def join(self, rows: Sequence[Tensor], k_len: int) -> Any:
        """The answer of all rows, from what `of_step` returned, one step after the other."""
        return rows[0] if len(self.shape(1, 1)) > 1 else rows[0][..., 0]


def mapped(function: Callable[[Tensor], Tensor], answer: Any) -> Any:
    """An answer, a tensor or a named tuple of them, with each tensor replaced by what the function returns."""
    return type(answer)(*map(function, answer)) if isinstance(answer, tuple) else function(answer)


def tensors_of(answer: Any) -> tuple[Tensor, ...]:
    """The tensors of an answer."""
    return answer if isinstance(answer, tuple) else (answer,)
