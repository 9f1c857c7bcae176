"""The base class of statistics. A statistic has a name, a unit, a sentence, and is computed tile by tile."""

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
    """Turns a statistic into one number for each head, for the summary and for the HTML page.

    By default the number is the mean over the queries that attend to anything. The value of an empty field is taken
    from the statistic.
    """

    heading: str = ""  #: the heading in the table of the summary; empty = the statistic is on the page only
    name: str = ""  #: the name in a row of the summary, a CSV file, and the facts of the page
    title: str = ""  #: the title on the page; empty = the name, with blanks
    unit: str = ""
    sentence: str = ""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)  #: options of the statistic
    values: Callable[[Any], Tensor] = lambda answer: answer  #: from the answer to one value for each query, [B, H, Q]
    largest: bool = False  #: take the largest value, not the mean
    counts: Callable[[Any], Tensor] | None = None  #: from the answer to the queries that count, [B, H, Q]; None = all
    within_sequence: bool = False  #: NaN if queries and keys are two sequences, as for distances

    def over(self, answer: Any, attends: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Compute the column's number from a statistic's `answer`, over the dimensions `dims` of [B, H, Q], in float64.

        `attends`, bool [B, H, Q]: False = leave this row out, because it attends to nothing.
        """
        attends = self.rows(answer, attends)
        values = self.values(answer).double().masked_fill(~attends, 0.0)
        return values.amax(dims) if self.largest else values.sum(dims) / attends.sum(dims)

    def rows(self, answer: Any, attends: Tensor) -> Tensor:
        """Return which of the queries that attend to anything the number is a mean over, bool [B, H, Q]."""
        return attends if self.counts is None else attends & self.counts(answer)


class Statistic:
    """One statistic of the weights. To add a statistic, derive a class from this class, and `register` it.

        @headwise.records.statistics.register
        class Highest(Statistic):
            name = "highest"
            unit = "share"
            sentence = "The largest weight of a query."
            column = Column("highest")

            def update(self, tile):
                self.answer[:, tile.rows] = tile.weights.amax(-1)

    A statistic with options is a dataclass: its fields are the options, `__post_init__` checks them. One pass over the
    weights serves every statistic. It goes through parts on several threads; a part is n heads of one example. Each
    part has its own copy of the statistic, whose attributes may store data of the part.
    """

    name: ClassVar[str]  #: an identifier
    unit: ClassVar[str]  #: "nats", "tokens", "share" (0 to 1), "keys", or any other
    sentence: ClassVar[str]  #: its meaning, for people
    column: ClassVar[Column | None] = None  #: None = neither in the summary nor on the page
    overwrites: ClassVar[Literal["", "scores", "weights"]] = ""  #: what `update` changes in a tile: it comes last

    native: ClassVar[tuple[str, ...]] = ()  #: answers of `native.attend.look` for `of_rows`; () = only tiles

    #: How the answers to the steps of a generation make up the answer to all rows: "rows" (they follow one another),
    #: "keys" (the sum over the steps, for each key), or "" (it cannot be computed from them).
    of_steps: ClassVar[Literal["", "rows", "keys"]] = ""

    #: The same for processes that share a sequence (`Scores.share`), each with some of its rows: "rows"; "sum" or "max"
    #: of answers that all have the shape of the whole's (`in_whole`); or "" (it cannot be computed from them).
    of_shares: ClassVar[Literal["", "rows", "sum", "max"]] = ""
    nothing: ClassVar[float] = 0.0  #: the answer to an empty row

    part: Part  #: the heads of the part
    answer: Any  #: to write to: the part of `empty` that belongs to these heads, [n, ...]

    def __init_subclass__(cls) -> None:
        # Declarations of a class need not hold for a subclass that changes its methods.
        cls.native, cls.of_steps = vars(cls).get("native", ()), vars(cls).get("of_steps", "")
        cls.of_shares = vars(cls).get("of_shares", "")

    def shape(self, q_len: int, k_len: int) -> tuple[int, ...]:
        """Return the shape of the answer after B and H; by default one number for each query, [Q]."""
        return (q_len,)

    def empty(self, call: Scores) -> Any:
        """Make an answer of zeros, [B, H, *shape], for rows that attend to nothing. A pass changes the other rows."""
        batch, heads, q_len, k_len = call.shape
        return torch.zeros((batch, heads, *self.shape(q_len, k_len)), dtype=call.dtype, device=call.q.device)

    def of(self, part: Part, answer: Any) -> Statistic:
        """Make a copy of the statistic for one part (some heads of one example)."""
        one = copy.copy(self)
        one.part = part
        one.answer = mapped(lambda x: x[part.b, part.heads], answer)
        one.begin()
        return one

    def begin(self) -> None:
        """Prepare for a part (some heads of one example). Called before its first tile; does nothing by default."""

    def update(self, tile: WeightTile) -> None:
        """Add a tile (some rows of weights) to the answer. Called for each tile of a part, in the order of the rows."""

    def finish(self) -> None:
        """Complete the answer of a part. Called after its last tile; does nothing by default."""

    def close(self, call: Scores, answer: Any) -> Any:
        """Complete the answer of a whole call, however it was computed. Returns it unchanged by default."""
        return answer

    def native_options(self, call: Scores) -> dict[str, Any] | None:
        """Return the options for `headwise.native.attend.look`; None = `look` cannot compute this statistic."""
        return {}

    def of_rows(self, call: Scores, rows: Mapping[str, Tensor]) -> Any:
        """Compute the answer from `rows`, the results of `headwise.native.attend.look`: the same answer as by tiles."""
        return rows[self.native[0]]

    def found_in(self, other: Statistic, answer: Any) -> Any | None:
        """Take this statistic's answer from the `answer` of `other`, an instance that may have other options.

        None if `answer` does not contain it. By default it does if the options agree.
        """
        return answer if vars(self) == vars(other) else None

    # For statistics with `of_shares`.

    def for_share(self) -> Statistic:
        """Return the statistic that each process computes of its rows; together their answers give the whole answer."""
        return self

    def in_whole(self, answer: Any, share: Share) -> Any:
        """Convert one process's answer to the whole sequence: its keys get their numbers (or places) there."""
        return answer

    # For statistics with `of_steps` = "rows".

    def of_step(self, call: Scores, answer: Any, before: int) -> tuple[Tensor, ...]:
        """Return the tensors [B, H, Q, ·] that `join` needs of a generation's step that has `before` earlier keys."""
        return (answer if len(self.shape(1, 1)) > 1 else answer[..., None],)

    def join(self, rows: Sequence[Tensor], k_len: int) -> Any:
        """Make the answer for all rows of a generation from the results of `of_step`, concatenated over the steps."""
        return rows[0] if len(self.shape(1, 1)) > 1 else rows[0][..., 0]


def mapped(function: Callable[[Tensor], Tensor], answer: Any) -> Any:
    """Apply a function to each tensor of an answer (a tensor or a named tuple of tensors); return the new answer."""
    return type(answer)(*map(function, answer)) if isinstance(answer, tuple) else function(answer)


def list_tensors(answer: Any) -> tuple[Tensor, ...]:
    """Return the tensors of an answer as a tuple."""
    return answer if isinstance(answer, tuple) else (answer,)
