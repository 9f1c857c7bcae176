"""Finds the subject of a figure: one record, the example and heads to draw, and names of its rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headwise.errors import ArgumentError, DtypeError, ShapeError, brief
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of
from headwise.records.seen import Layer, one_layer
from headwise.text import Tokens, as_tokens
from headwise.text.places import Place, find_position

Head = int | Literal["mean"]
Places = Place | slice | range | Sequence[Place] | None
Labels = Sequence[str] | None


@dataclass(frozen=True)
class Axis:
    """The rows or the columns of a figure: how many the record has, which of them are drawn, and their names."""

    word: str  # "query" or "key"
    size: int
    places: Sequence[int]
    labels: Sequence[str] | None = None  # the names of all rows or columns; None = numbers
    tokens: Tokens | None = None  # if the labels belong to a text

    def __len__(self) -> int:
        return len(self.places)

    @property
    def names(self) -> list[str]:
        """The names of the drawn rows or columns."""
        return [self.name(place) for place in self.places]

    def name(self, place: int) -> str:
        return str(place) if self.labels is None else self.labels[place]

    @property
    def choice(self) -> slice | list[int]:
        """The drawn rows or columns, as an index for a record."""
        places = self.places
        if isinstance(places, range) and places.step == 1:
            return slice(places.start, places.stop)
        return list(places)


@dataclass(frozen=True)
class Subject:
    """The subject of a figure: one head, or the mean of all heads, of one example of one record."""

    record: AttentionRecord
    example: int
    heads: list[int]
    rows: Axis
    cols: Axis
    layer: str  # the name of the layer, may be ""

    @property
    def title(self) -> str:
        several, count = len(self.heads) > 1, self.record.shape[0]
        parts = [
            self.layer,
            f"mean of {len(self.heads)} heads" if several else f"head {self.heads[0]}",
        ]
        return ", ".join(part for part in [*parts, f"example {self.example}" if count > 1 else ""] if part)


def find_subject(
    what: Seen | AttentionRecord,
    layer: Layer | None,
    head: Head,
    example: int,
    rows: Places,
    cols: Places,
    tokens: Any,
    row_labels: Labels,
    col_labels: Labels,
    called: tuple[str, str] = ("rows", "cols"),
) -> Subject:
    """Find the subject that a figure's arguments describe; `called`: the names of `rows` and `cols` in messages.

    Raises ArgumentError, DtypeError, ShapeError or RecordError.
    """
    record, name = find_record(what, layer)
    batch, count, q_len, k_len = record.shape
    if 0 in record.shape:
        raise ArgumentError(f"nothing to draw in an empty record. Received: [B, H, Q, K]={list(record.shape)}")
    example = check_place("example", example, batch)
    if head == "mean":
        heads = list(range(count))
    elif isinstance(head, str):
        raise ArgumentError(f'head: expected a number from 0 to {count - 1}, or "mean". Received: head={head!r}')
    else:
        heads = [check_place("head", head, count)]
    (row_names, row_tokens), (col_names, col_tokens) = _names(what, record, example, tokens)
    return Subject(
        record,
        example,
        heads,
        make_axis(called[0], "query", q_len, rows, row_labels, row_names, row_tokens),
        make_axis(called[1], "key", k_len, cols, col_labels, col_names, col_tokens),
        name,
    )


def find_axes(what: Seen | AttentionRecord, layer: Layer | None, example: int) -> list[Tokens | Sequence[str] | None]:
    """Return the tokens of the rows and of the columns of one layer, or only their labels; None if unknown."""
    record, _ = find_record(what, layer)
    example = check_place("example", example, record.shape[0])
    return [tokens or names for names, tokens in _names(what, record, example, None)]


def find_record(what: Seen | AttentionRecord, layer: Layer | None) -> tuple[AttentionRecord, str]:
    """Return the record of one layer, and its name for a title."""
    if isinstance(what, AttentionRecord):
        if layer is not None:
            raise ArgumentError("layer: expected a Seen. Received: a record, which has one layer only. Leave layer out")
        return what, what.site.name if what.site else ""
    if not isinstance(what, Seen):
        raise DtypeError(f"plot: expected a Seen or an AttentionRecord. Received: {type(what).__name__}")
    if not len(what):
        raise ArgumentError("layer: expected at least one recorded layer. Received: none")
    record = one_layer(what, layer)
    return record, f"layer {what.layers.index(name_of(record))}"


def _names(
    what: Seen | AttentionRecord, record: AttentionRecord, example: int, given: Any
) -> list[tuple[Sequence[str] | None, Tokens | None]]:
    """Return the labels of all rows and of all columns, each with its tokens; None if unknown."""
    sizes = record.shape[2:]
    own = record.row_names, record.col_names
    if given is None and isinstance(what, AttentionRecord):
        return [(names, None) for names in own]
    if given is None:
        assert isinstance(what, Seen)
        return [(side[example].labels, side[example]) if side else (None, None) for side in what.axes(record)]
    side = find_labels(given, record.shape[0], example, sizes)
    return [(names, None) if names else each for names, each in zip(own, side, strict=True)]


def find_labels(
    given: Any, batch: int, example: int, sizes: Sequence[int]
) -> list[tuple[Sequence[str] | None, Tokens | None]]:
    """Return the labels that `tokens=` gives to rows and to columns; None for a side of another length."""
    tokens = as_tokens(given)
    if len(tokens) not in (1, batch):
        raise ShapeError(f"tokens: expected 1 text, or one for each of {batch} examples. Received: {len(tokens)} texts")
    text = tokens[example if len(tokens) > 1 else 0]
    if len(text.labels) not in sizes:
        raise ShapeError(
            f"tokens: expected {sizes[0]} (rows) or {sizes[1]} (columns) tokens. Received: {len(text.labels)} tokens"
        )
    return [(text.labels, text) if len(text.labels) == size else (None, None) for size in sizes]


def make_axis(
    argument: str, word: str, size: int, choice: Places, given: Labels, labels: Labels, tokens: Tokens | None
) -> Axis:
    """Make an axis of `size` rows or columns, of which `choice` is drawn; `given` names them, or else `labels`."""
    if given is not None:
        name, of = {"query": ("row_labels", "row"), "key": ("col_labels", "column")}[word]
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise DtypeError(f"{name}: expected a list of strings. Received: {brief(given)}")
        if len(given) != size:
            raise ShapeError(
                f"{name}: expected {size} names, one for each {of}, drawn or not. Received: len({name})={len(given)}"
            )
        labels, tokens = tuple(given), None
    return Axis(word, size, _places(argument, choice, size, tokens or labels), labels, tokens)


def _places(argument: str, choice: Places, size: int, tokens: Tokens | Sequence[str] | None) -> Sequence[int]:
    if choice is None:
        return range(size)
    if isinstance(choice, slice):
        places: Sequence[int] = range(*choice.indices(size))
    elif isinstance(choice, range):
        places = choice if not choice or (min(choice) >= 0 and max(choice) < size) else list(choice)
    else:
        several = [choice] if isinstance(choice, (int, str)) else list(choice)
        places = [find_position(each, tokens, argument) for each in several]
    if isinstance(places, list):
        places = [check_place(argument, place, size) for place in places]
    if not places:
        raise ArgumentError(f"{argument}: expected at least one of 0 … {size - 1}. Received: {argument}={choice!r}")
    return places


def check_place(argument: str, place: int, size: int) -> int:
    """Return an index below `size`; a negative one counts from the end. Raises ArgumentError if it is out of range."""
    if isinstance(place, bool) or not hasattr(place, "__index__"):
        raise DtypeError(f"{argument}: expected a number from 0 to {size - 1}. Received: {place!r}")
    if not -size <= place < size:
        raise ArgumentError(f"{argument} must be in 0 … {size - 1}. Received: {argument}={place}")
    return int(place) % size
