"""Tables of what was seen: what each head does, in a few numbers and its strongest pair; and text to print them as."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from headwise.errors import ArgumentError
from headwise.records import names as paths
from headwise.records.record import AttentionRecord
from headwise.records.seen import Seen, name_of

if TYPE_CHECKING:
    import pandas
    from rich.console import RenderableType
    from rich.text import Text

SHOWN = 48  # rows of a table in a notebook or a terminal
SHARE = 0.9  # of a row's weight, for `keys_needed`

Labels = Sequence[str] | None


@dataclass(frozen=True)
class HeadSummary:
    """One head of one call: means over the examples and over the queries that attend to anything.

    A query "looks", a key "is looked at". NaN where there is no such number: distances between two sequences.
    """

    layer: str  # its name
    index: int  # its number: its place in `seen.layers`
    call: int  # which call of the layer
    head: int
    kind: str  # "self" or "cross"
    entropy: float  # nats: 0 looks at one key, log K at all alike
    distance: float  # tokens between a query and what it looks at
    previous: float  # weight on the key just before the query, 0 to 1
    on_first: float  # weight on the first key that any query may attend to (the sink), 0 to 1
    keys_needed: float  # the fewest keys that hold 90% of a query's weight
    weight: float  # the strongest pair of a query and a key: its weight,
    example: int  # in which example it is,
    looks: int  # the query, a row,
    looked_at: int  # the key, a column,
    looks_label: str  # and what they are called: tokens, or their numbers where nobody said
    looked_at_label: str


@dataclass(frozen=True)
class Summary:
    """One row a layer and head. `print` it, or show it in a notebook."""

    rows: tuple[HeadSummary, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[HeadSummary]:
        return iter(self.rows)

    def __str__(self) -> str:
        return as_text(self)

    def __rich__(self) -> RenderableType:
        return head_table(self.rows, most=SHOWN)

    def to_pandas(self) -> pandas.DataFrame:
        """All rows as a frame; its columns are the fields of `HeadSummary`."""
        try:
            import pandas
        except ImportError as error:
            raise ArgumentError('a frame needs pandas, which is not here: pip install "headwise[pandas]"') from error
        fields = [field.name for field in dataclasses.fields(HeadSummary)]
        return pandas.DataFrame([dataclasses.astuple(row) for row in self.rows], columns=fields)


def summarise(seen: Seen) -> Summary:
    """The table of all heads of all layers. One pass over each record; nothing of size Q × K is held."""
    return Summary(tuple(row for record in seen.records for row in rows_of(seen, record)))


def rows_of(seen: Seen, record: AttentionRecord) -> list[HeadSummary]:
    """The rows of one record of `seen`, one a head."""
    layer = name_of(record)
    labels = [(seen.row_labels(record, b), seen.col_labels(record, b)) for b in range(record.shape[0])]
    return head_rows(record, layer=layer, index=seen.layers.index(layer), labels=labels)


def head_rows(
    record: AttentionRecord, *, layer: str, index: int, labels: Sequence[tuple[Labels, Labels]]
) -> list[HeadSummary]:
    """The rows of one record, one a head. `labels` are those of the queries and of the keys, for each example."""
    _, heads, q_len, k_len = record.shape
    call, kind = (record.site.call, record.site.kind) if record.site else (0, "self")

    def row(head: int, numbers: Sequence[float], b: int = 0, q: int = 0, k: int = 0) -> HeadSummary:
        entropy, distance, previous, on_first, keys_needed, weight = numbers
        attends = weight > 0
        return HeadSummary(
            layer=layer,
            index=index,
            call=call,
            head=head,
            kind=kind,
            entropy=entropy,
            distance=math.nan if kind == "cross" else distance,
            previous=math.nan if kind == "cross" else previous,
            on_first=on_first,
            keys_needed=keys_needed,
            weight=weight,
            example=b,
            looks=q,
            looked_at=k,
            looks_label=_label(labels[b][0], q) if attends else "",
            looked_at_label=_label(labels[b][1], k) if attends else "",
        )

    if not q_len or not k_len:
        return [row(head, (math.nan,) * 6) for head in range(heads)]
    found = record.statistics(
        *("lse", "entropy", "distance", "offset_mass", "sink_share", "keys_needed", "top"),
        top=1,
        offsets=(1,),
        share=SHARE,
        sink_keys=1,
    )
    assert found.lse is not None
    assert found.offset_mass is not None
    assert found.top is not None
    attends = ~torch.isneginf(found.lse)
    means = []
    for x_BHQ in (found.entropy, found.distance, found.offset_mass[..., 0], found.sink_share, found.keys_needed):
        assert x_BHQ is not None
        means.append((x_BHQ.double().masked_fill(~attends, 0.0).sum((0, 2)) / attends.sum((0, 2))).tolist())
    # The strongest pair of each head, among the queries of all examples.
    weights_HN, keys_HN = (x.transpose(0, 1).flatten(1) for x in found.top)
    strongest = weights_HN.max(dim=1)
    rows = []
    for head, place in enumerate(strongest.indices.tolist()):
        numbers = [*(mean[head] for mean in means), float(strongest.values[head])]
        b, q = divmod(place, q_len)
        rows.append(row(head, numbers, b, q, int(keys_HN[head, place])))
    return rows


def _label(labels: Labels, place: int) -> str:
    return str(place) if labels is None else labels[place]


# --- Drawing ----------------------------------------------------------------------------------------------------------

# heading -> what a row has there. What is not here is put together by `head_table`.
_NUMBERS: dict[str, Callable[[HeadSummary], str]] = {
    "entropy": lambda row: _number(row.entropy, ".2f"),
    "distance": lambda row: _number(row.distance, ".1f"),
    "prev": lambda row: _number(row.previous, ".0%"),
    "on first": lambda row: _number(row.on_first, ".0%"),
    "keys": lambda row: _number(row.keys_needed, ".1f"),
}


def head_table(
    rows: Sequence[HeadSummary],
    *,
    numbers: Sequence[str] = tuple(_NUMBERS),
    title: str | None = None,
    caption: str | None = None,
    most: int | None = None,
) -> RenderableType:
    """The rows drawn as a table; of more than `most` the first ones."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text("no attention was seen, so there is nothing to summarise")
    layers = dict.fromkeys((row.index, row.layer) for row in rows)
    calls, kinds = any(row.call for row in rows), len({row.kind for row in rows}) > 1
    if caption is None:
        caption = (
            "entropy in nats · distance in tokens · prev, on first: weight on the key before the query, on the "
            f"first key · keys: how many hold {SHARE:.0%} of the weight · pair: who looks → at whom"
        )
    if title is None:
        title = "\n".join(f"layer {line}" for line in paths.legend(list(layers)))
    table = Table(
        title=Text(title),
        caption=Text(caption),
        box=SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
        title_justify="left",
        caption_justify="left",
        title_style="bold",
        caption_style="dim",
    )
    for heading in ("layer", *(["call"] if calls else []), "head", *(["kind"] if kinds else []), *numbers):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("strongest pair", overflow="fold")
    table.add_column("weight", justify="right", no_wrap=True)
    shown = rows if most is None else rows[:most]
    previous = None
    for row in shown:
        if previous not in (None, (row.index, row.call)):
            table.add_section()
        table.add_row(
            Text(str(row.index), style="dim" if previous == (row.index, row.call) else "bold"),
            *([str(row.call)] if calls else []),
            str(row.head),
            *([row.kind] if kinds else []),
            *(_NUMBERS[heading](row) for heading in numbers),
            _pair(row),
            _number(row.weight, ".2f"),
        )
        previous = (row.index, row.call)
    if len(shown) == len(rows):
        return table
    return Group(table, Text(f"… and {len(rows) - len(shown):,} more rows; to_pandas() has all"))


def _pair(row: HeadSummary) -> Text:
    from rich.text import Text

    if not row.weight > 0:
        return Text("–")
    return Text.assemble((row.looks_label, "cyan"), (" → ", "dim"), (row.looked_at_label, "cyan"))


def _number(value: float, how: str) -> str:
    return "–" if math.isnan(value) else format(value, how)


def as_text(table: Any) -> str:
    """What rich draws, as plain text in which no row is wrapped or cut."""
    from rich.console import Console
    from rich.measure import Measurement

    console = Console(file=io.StringIO(), width=10_000, color_system=None, force_jupyter=False)
    console.width = max(20, Measurement.get(console, console.options, table).maximum)
    with console.capture() as drawn:
        console.print(table)
    return "\n".join(line.rstrip() for line in drawn.get().splitlines()).strip("\n")
