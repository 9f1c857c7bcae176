"""A summary of attention heads: for each head a row with a few numbers and its strongest pair of query and key."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.extras import need
from headwise.language import said
from headwise.records import names as paths
from headwise.records.collection import Collection
from headwise.records.names import name_of
from headwise.records.record import AttentionRecord, positions
from headwise.records.statistics import Column, Statistics, columns
from headwise.tables import Cell, Heading, Table
from headwise.text.places import Place, find_position

if TYPE_CHECKING:
    import pandas

    from headwise.text.tokens import Tokens

SHOWN = 48  # rows of a table in a terminal
SHOWN_IN_A_NOTEBOOK = 480  # rows in a notebook, where the table scrolls
BEGUN = 8  # rows of a `repr`


@dataclass(frozen=True, repr=False)
class HeadSummary:
    """The numbers of one head in one call of its layer: means over examples and over queries that attend to anything.

    `numbers` has one number for each statistic that has a column. Each number is an attribute too: `row.entropy`,
    `row.previous`. It is NaN where it has no meaning, such as a distance between two sequences.
    """

    layer: str  # its name
    index: int  # its number in `seen.layers`
    call: int  # the number of the call of the layer
    head: int
    kind: str  # "self" or "cross"
    numbers: Mapping[str, float] = field(hash=False)  # by the name of the column
    weight: float  # the strongest pair of a query and a key: its weight,
    example: int  # the example in which it is,
    looks: int  # the query, a row,
    looked_at: int  # the key, a column,
    looks_label: str  # and their labels: tokens, or their numbers if there are no tokens
    looked_at_label: str

    def __getattr__(self, name: str) -> float:
        try:
            found: float = self.__dict__["numbers"][name]
        except KeyError:
            raise AttributeError(f"a HeadSummary has no {name!r}") from None
        return found

    def __repr__(self) -> str:
        pair = f", {self.looks_label} → {self.looked_at_label} {self.weight:.2f}" if self.weight > 0 else ""
        numbers = ", ".join(f"{name} {x:.3g}" for name, x in self.numbers.items())
        return f"HeadSummary({self.layer}, head {self.head}{pair}; {numbers})"

    @staticmethod
    def fields() -> list[str]:
        """Return the names of all values of a row, including the numbers, in order."""
        numbers = [column.name for column in columns().values() if column.heading]
        return [name for each in fields(HeadSummary) for name in (numbers if each.name == "numbers" else [each.name])]

    def values(self) -> dict[str, Any]:
        """Return all values of the row, by name."""
        return {name: getattr(self, name) for name in self.fields()}


@dataclass(frozen=True, repr=False)
class Summary:
    """One row for each layer and head. `print` it, or show it in a notebook."""

    rows: tuple[HeadSummary, ...]
    tokens: int = 0  # the number of tokens that the model read; 0 if they have no names
    unknown: int = 0  # the number of tokens that it does not know and reads as [UNK]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadSummary]:
        return iter(self.rows)

    def __repr__(self) -> str:
        """Write the first rows; `print` writes more."""
        if not self.rows:
            return "Summary(no heads)"
        heads, layers = len({(row.layer, row.head) for row in self.rows}), len({row.layer for row in self.rows})
        table = head_table(self.rows, title="", caption="", most=BEGUN)
        lines = [
            said("Summary of {heads:,} heads in {layers:,} layer{s}", heads=heads, layers=layers, s="s" * (layers > 1))
        ]
        one_group = [[row for group in table.groups for row in group]]  # without blank lines
        lines += str(dataclasses.replace(table, groups=one_group, notes=())).splitlines()
        if len(self.rows) > BEGUN:
            lines.append(said("… print(summary) shows more, summary.to_pandas() has all"))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return self.__rich__(SHOWN_IN_A_NOTEBOOK)._repr_html_()

    def __str__(self) -> str:
        return str(self.__rich__())

    def __rich__(self, most: int = SHOWN) -> Table:
        return head_table(self.rows, most=most, unknown=(self.unknown, self.tokens))

    def to_pandas(self) -> pandas.DataFrame:
        """Return all rows as a data frame with the columns `HeadSummary.fields()`. ArgumentError without pandas."""
        need("to_pandas", "pandas")
        import pandas

        return pandas.DataFrame([row.values() for row in self.rows], columns=HeadSummary.fields())


class RunningSummary:
    """The summary of many runs of a model, added one after the other. It keeps only a few numbers for each head.

    Numbers are means over the queries of all runs; `example` of a row is the number of the run that has the strongest
    pair.
    """

    def __init__(self) -> None:
        self._of: dict[tuple[str, int], tuple[HeadSummary, dict[str, tuple[float, int]]]] = {}
        self._unknown = self._tokens = 0
        self.runs = 0

    @staticmethod
    def statistics() -> dict[str, dict[str, Any]]:
        """Return the statistics for `watch`: `watch(model, statistics=RunningSummary.statistics(), keep=False)`."""
        return {each.name: dict(column.options) for each, column in columns().items()}

    def add(self, seen: Collection) -> None:
        """Add the records of one run. They are not needed afterwards."""
        unknown, tokens = seen.unknown_tokens()
        self._unknown, self._tokens = self._unknown + unknown, self._tokens + tokens
        for record in seen.records:
            queries = record.shape[0] * record.shape[2]
            for row in make_rows(seen, record):
                strongest, sums = self._of.setdefault((row.layer, row.head), (row, {}))
                for name, number in row.numbers.items():
                    if not math.isnan(number):
                        total, count = sums.get(name, (0.0, 0))
                        sums[name] = total + number * queries, count + queries
                if row.weight > strongest.weight or row is strongest:
                    strongest = replace(row, index=strongest.index, call=0, example=self.runs)
                self._of[row.layer, row.head] = strongest, sums
        self.runs += 1

    def summary(self) -> Summary:
        """Return a summary with one row for each layer and head, over all runs so far."""
        rows = []
        for row, sums in self._of.values():
            means = {name: total / count for name, (total, count) in sums.items()}
            rows.append(replace(row, numbers={name: means.get(name, math.nan) for name in row.numbers}))
        return Summary(tuple(sorted(rows, key=lambda row: (row.index, row.head))), self._tokens, self._unknown)


def ask(record: AttentionRecord, kind: str, *, rows: int | None = None) -> Statistics:
    """Compute the statistics that `numbers` needs: `lse`, and all with a column; of about `rows` rows (None = all)."""
    asked = {each.name: column for each, column in columns().items() if not _meaningless(column, kind)}
    options = {name: value for column in asked.values() for name, value in column.options.items()}
    return record.statistics("lse", *asked, rows=rows, **options)


def numbers(found: Statistics, kind: str, dims: tuple[int, ...]) -> dict[str, Tensor]:
    """Reduce statistics to one number for each column, over the dimensions `dims` of [B, H, Q]; NaN = no meaning."""
    attends = found.lse > -math.inf  # not NaN, as for a skipped query
    nothing = torch.full_like(attends.sum(dims), math.nan, dtype=torch.double)
    return {
        column.name: nothing
        if _meaningless(column, kind)
        else column.over(getattr(found, statistic.name), attends, dims)
        for statistic, column in columns().items()
    }


def _meaningless(column: Column, kind: str) -> bool:
    return kind == "cross" and column.within_sequence


def make_rows(
    seen: Collection, record: AttentionRecord, row: Place | None = None, *, called: str = "row"
) -> list[HeadSummary]:
    """Make the rows of the summary for one record of `seen`, one for each head.

    `row`: use only this query of each example, given by its number or the text of its token; error messages call it
    `called`.
    """
    layer, (_, heads, q_len, k_len) = name_of(record), record.shape
    call, kind = (record.site.call, record.site.kind) if record.site else (0, "self")
    shown = [column.name for column in columns().values() if column.heading]
    found = ask(record, kind)
    if row is not None:
        found.lse = found.lse.where(_only_row(seen, record, row, called).to(found.lse.device), math.nan)
    empty = not (q_len and k_len)
    alone = None if empty or row is not None else _alone(found)
    means = {} if empty else {name: mean.tolist() for name, mean in numbers(found, kind, (0, 2)).items()}
    rows = []
    for head in range(heads):
        # The strongest pair, among the queries of all examples.
        weights = found.top.weights[:, head, :, 0].where(~found.lse[:, head].isnan(), -1.0)
        weights = (weights if alone is None else weights.masked_fill(alone[:, head], -1.0)).flatten()
        weight, place = (math.nan, 0) if empty else (float(weights.max()), int(weights.argmax()))
        b, q = divmod(place, q_len or 1)
        k = 0 if empty else int(found.top.keys[b, head, q, 0])
        rows.append(
            HeadSummary(
                layer=layer,
                index=seen.layers.index(layer),
                call=call,
                head=head,
                kind=kind,
                numbers={name: math.nan if empty else means[name][head] for name in shown},
                weight=weight,
                example=b,
                looks=q,
                looked_at=k,
                looks_label=_label(seen.row_labels(record, b), q) if weight > 0 else "",
                looked_at_label=_label(seen.col_labels(record, b), k) if weight > 0 else "",
            )
        )
    return rows


def _alone(found: Statistics) -> Tensor:
    """Find the queries that attend to a single key, as a causal model's first token does: bool [B, H, Q].

    Their weight of 1 means nothing. If all queries of a head are like that, all of them are False.
    """
    alone = (found.top.weights[..., 0] == 1) & (found.entropy == 0)
    return alone & ~alone.flatten(2).all(-1)[..., None]


def _only_row(seen: Collection, record: AttentionRecord, row: Place, called: str) -> Tensor:
    """Find the query that `row` means (a number or a text) in each example: bool [B, 1, Q]."""
    batch, _, q_len, _ = record.shape
    tokens: Sequence[Tokens | None] = seen.axes(record)[0] or [None] * batch
    places = [positions(find_position(row, one, called), q_len, called)[0] for one in tokens]
    return torch.arange(q_len, device="cpu") == torch.tensor(places, device="cpu")[:, None, None]


def _label(labels: Sequence[str] | None, place: int) -> str:
    return str(place) if labels is None else labels[place]


# --- As a table -------------------------------------------------------------------------------------------------------

_FORMATS = {"nats": ".2f", "tokens": ".1f", "share": ".0%", "keys": ".1f"}  # by unit


def head_table(
    rows: Sequence[HeadSummary],
    *,
    title: str | None = None,
    caption: str | None = None,
    most: int | None = None,
    unknown: tuple[int, int] = (0, 0),
) -> Table:
    """Make a table of the rows; only of the first `most` rows.

    `unknown`: (number of tokens that the model does not know, number of all tokens), for a note.
    """
    shown = [each for each in columns().values() if each.heading]
    if not rows:
        return Table((), (), notes=[said("no attention was seen, so there is nothing to summarise")])
    calls, kinds = any(row.call for row in rows), len({row.kind for row in rows}) > 1
    if caption is None:
        caption = " · ".join([*map(_explained, shown), said("pair: query → key")])
    if title is None:
        layers = dict.fromkeys((row.index, row.layer) for row in rows)
        title = "\n".join(
            said("layer {number}: {path}", number=number, path=path)
            for number, _, path in (line.partition(": ") for line in paths.legend(list(layers)))
        )

    def cells(row: HeadSummary, *, first: bool) -> list[Cell]:
        """Return the cells of one row. `first`: whether the row is the first of its layer and call."""
        return [
            [(str(row.index), "bold" if first else "dim")],
            *([str(row.call)] if calls else []),
            str(row.head),
            *([row.kind] if kinds else []),
            *(_number(row.numbers[each.name], _FORMATS.get(each.unit, ".3g")) for each in shown),
            [(row.looks_label, "cyan"), (" → ", "dim"), (row.looked_at_label, "cyan")] if row.weight > 0 else "–",
            _number(row.weight, ".2f"),
        ]

    above = ["layer", *(["call"] if calls else []), "head", *(["kind"] if kinds else [])]
    groups = itertools.groupby(rows[:most], key=lambda row: (row.index, row.call))
    return Table(
        headings=[
            *map(Heading, [*above, *(each.heading for each in shown)]),
            Heading("strongest pair", "left"),
            Heading("weight"),
        ],
        groups=[[cells(row, first=not place) for place, row in enumerate(group)] for _, group in groups],
        title=title,
        caption=caption,
        notes=[
            *(
                [said("… and {count:,} more rows; to_pandas() has all", count=len(rows[most:]))]
                if len(rows[:most]) < len(rows)
                else []
            ),
            *filter(None, [unknown_said(*unknown)]),
        ],
    )


def _explained(column: Column) -> str:
    """Describe a column of the table in a few words, for the caption."""
    heading, sentence = said(column.heading), said(column.sentence)
    if column.unit in ("nats", "tokens"):
        return heading + said(f" in {column.unit}")
    return f"{heading}{said(': ')}{sentence[:1].lower()}{sentence[1:].rstrip('.。')}"


def unknown_said(unknown: int, tokens: int) -> str | None:
    """Return "54 of 73 tokens are unknown to this model", or None if the model knows all."""
    if not unknown:
        return None
    return said(
        "{unknown:,} of {tokens:,} tokens {are} unknown to this model",
        unknown=unknown,
        tokens=tokens,
        are="is" if unknown == 1 else "are",
    )


def _number(value: float, how: str) -> str:
    return "–" if math.isnan(value) else format(value, how)
