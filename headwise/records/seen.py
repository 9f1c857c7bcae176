"""`Seen`: the records of all attention that a model computed, by layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor

from headwise import registry
from headwise.errors import ArgumentError, RecordError, brief
from headwise.records import names
from headwise.records.computed import ComputedRecord
from headwise.records.coverage import Coverage
from headwise.records.record import AttentionRecord, Choice
from headwise.registry import Bundle
from headwise.text.places import Place, find_position
from headwise.text.tokens import Tokens

if TYPE_CHECKING:
    import pandas

    from headwise.records.statistics.compute import OfLayers
    from headwise.records.summary import Summary

Layer = int | str


class Seen:
    """The records of a model's attention, in the order in which it was computed.

        seen.layers                       the names of the layers
        seen[3], seen["encoder.layer.3"]  the record of one layer: by number, path, or a part or pattern of the path
        seen[2:5], seen[["0", "*.11"]]    some of the layers, as a Seen
        seen[3, 7, :, 0]                  weights [B, heads, rows, cols]: layer, heads, rows, cols
        seen[3, 7, "it", "animal"]        the same for tokens, by their text; "it:2" is the second "it"
        seen.call(1)                      the second forward pass, if there were several

    `headwise.records.names.choose` describes how layers are chosen. Raises RecordError, with the existing names, for a
    layer that was not seen, or if several layers match where one was expected.
    """

    _tokens: list[Tokens] | None = None
    _source_tokens: list[Tokens] | None = None
    model: str = ""  #: the class of the model that was watched; "" = unknown
    pixel_values: Tensor | None = None  #: the images that the model read, [B, C, H, W], as it read them; or None

    def __init__(self, records: Sequence[AttentionRecord] = (), coverage: Coverage | None = None) -> None:
        self._records = list(records)
        self._coverage = Coverage() if coverage is None else coverage
        self._named: dict[tuple[tuple[str, ...], int], list[Tokens]] = {}  # each list once: equal axes are identical

    @property
    def records(self) -> list[AttentionRecord]:
        """All records, in the order in which the attention was computed."""
        return self._records

    def coverage(self) -> Coverage:
        """Return every place in the model's code that computes attention: seen, missed or refused, and why."""
        return self._coverage

    @property
    def layers(self) -> list[str]:
        """The names of the layers: the paths of the modules that computed attention, in the order of first use."""
        return list(self._calls())

    def __len__(self) -> int:
        return len(self.records)

    def __iter__(self) -> Iterator[AttentionRecord]:
        return iter(self.records)

    def __repr__(self) -> str:
        records, coverage = self.records, self.coverage()
        if not records:
            return f"Seen(empty: {self._nothing()})"
        layers = len(self.layers)
        parts = [f"{layers} layer{'s' if layers > 1 else ''}"]
        if len(records) > layers:
            parts.append(f"{len(records)} calls")
        sizes = zip(*(record.shape for record in records), strict=True)
        for letter, size in zip("BHQK", sizes, strict=True):
            parts.append(f"{letter}={min(size)}" if len(set(size)) == 1 else f"{letter}={min(size)}…{max(size)}")
        for status, sites in (("missed", coverage.missed), ("refused", coverage.refused)):
            if sites:
                parts.append(f"{len(sites)} {status}, see coverage()")
        return f"Seen({', '.join(parts)})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        if any(isinstance(record, ComputedRecord) for record in self.records):  # the page shows weights
            return {"text/plain": repr(self)}, {}
        return registry.in_notebook(self)

    # Choosing layers.

    @overload
    def __getitem__(self, layer: Layer) -> AttentionRecord: ...
    @overload
    def __getitem__(self, layer: slice | list[Layer] | list[str] | list[int]) -> Seen: ...
    @overload
    def __getitem__(self, layer: tuple[Any, ...]) -> Tensor: ...
    def __getitem__(self, layer: Any) -> AttentionRecord | Seen | Tensor:
        if isinstance(layer, tuple):
            return self._weights(*layer)
        if isinstance(layer, slice):
            return self._some(self.layers[layer])
        if isinstance(layer, list):
            return self.only(*layer)
        (name, *others) = self._names(layer)
        if others:
            found = names.listed([name, *others])
            raise RecordError(
                f"expected one layer. Received: layer={layer!r}, which means {1 + len(others)} layers: {found}. "
                "Name one, or take all: seen.only(...)"
            )
        records = self._calls()[name]
        if len(records) > 1:
            raise RecordError(
                f"{name} was called {len(records)} times: choose one with seen.call(i)[{layer!r}]; "
                f"i is one of {names.numbered(sorted(_call_numbers(records)))}"
            )
        return records[0]

    def only(self, *layers: Layer | Sequence[Layer]) -> Seen:
        """Select the layers that these numbers, paths or patterns ("*.self_attn") mean; the records keep their order.

        Several layers may also be given as one list, as in `watch(only=)`.
        """
        return self._some(self._names([each for given in layers for each in names.check_choice(given)]))

    def call(self, number: int) -> Seen:
        """Select one call of each layer: 0 is the first forward pass.

        A negative number counts from each layer's last call. Records without a module together count as one layer, with
        one call for each record.
        """
        chosen: set[int] = set()
        known: set[int] = set()
        for records in self._calls().values():
            numbers = _call_numbers(records)
            known.update(numbers)
            wanted = sorted(numbers)[number] if -len(numbers) <= number < 0 else number
            chosen.update(id(record) for n, record in zip(numbers, records, strict=True) if n == wanted)
        if not chosen:
            there = f"the calls are {names.numbered(sorted(known))}" if known else self._nothing()
            raise RecordError(f"there is no call {number}: {there}")
        return self._copy([record for record in self.records if id(record) in chosen])

    def _weights(self, layer: Any, heads: Choice = None, rows: Any = None, cols: Any = None, *more: Any) -> Tensor:
        if more or isinstance(heads, str):
            index = (layer, heads, rows, cols, *more)
            raise ArgumentError(
                f"expected seen[layer, heads, rows, cols]. Received: index={brief(index)}. "
                "For several layers give a list: seen[[first, second]]"
            )
        record = self[layer]
        if not isinstance(record, AttentionRecord):
            raise ArgumentError(
                f"weights are those of one layer: expected its number or name. Received: layer={layer!r}"
            )
        of_rows, of_cols = self.axes(record) if _texts(rows) or _texts(cols) else (None, None)
        rows, cols = _found(rows, of_rows, "rows"), _found(cols, of_cols, "cols")
        return record.weights(rows=rows, cols=cols, heads=heads)

    def _calls(self) -> dict[str, list[AttentionRecord]]:
        """Return, for each layer name, the records of the layer, one for each call."""
        calls: dict[str, list[AttentionRecord]] = {}
        for record in self.records:
            calls.setdefault(names.name_of(record), []).append(record)
        return calls

    def _names(self, choice: Any) -> list[str]:
        """Return the names of the layers that a choice means. RecordError if there are none."""
        if not self.layers:
            raise RecordError(self._nothing())
        try:
            return names.choose(self.layers, choice)
        except RecordError:
            for each in names.check_choice(choice):
                self._explain(each)
            raise

    def _explain(self, layer: int | str) -> None:
        """Raise RecordError with the reason if this layer exists in the model but was missed or refused."""
        unseen = {site.name: site for site in (*self.coverage().missed, *self.coverage().refused)}
        found = names.select(list(unseen), [layer])[0] if isinstance(layer, str) else []
        if found and not names.select(self.layers, [layer])[0]:
            site = unseen[found[0]]
            raise RecordError(f"{site.name} was {site.status}: {site.how}")

    def _nothing(self) -> str:
        coverage = self.coverage()
        unseen = len(coverage.missed) + len(coverage.refused)
        places = "1 place that computes it was" if unseen == 1 else f"{unseen} places that compute it were"
        parts = [note.rstrip(".") for note in coverage.notes]
        if not any(part.startswith(("no attention was seen", "only=")) for part in parts):
            parts.insert(0, "no attention was seen")
        return ". ".join([*parts, *([f"{places} not: print(seen.coverage()) says why"] if unseen else [])])

    def _some(self, layers: Sequence[str]) -> Seen:
        return self._copy([record for record in self.records if names.name_of(record) in layers])

    def _copy(self, records: Sequence[AttentionRecord]) -> Seen:
        seen = Seen(records, self.coverage())
        seen._tokens, seen._source_tokens = self._tokens, self._source_tokens
        seen.model, seen.pixel_values = self.model, self.pixel_values
        return seen

    # Tokens of rows and columns.

    @property
    def tokens(self) -> list[Tokens] | None:
        """The tokens of each example (in an encoder-decoder, the decoder's tokens); None if they were not set.

        It can be set to anything that `headwise.text.as_tokens` takes: the output of a tokenizer, `Tokens`, `Patches`,
        `Frames`, or names for each example; for an encoder-decoder, to `{"source": ..., "target": ...}`. Raises
        RecordError if a record has another number of rows or columns.
        """
        return self._tokens

    @tokens.setter
    def tokens(self, value: object) -> None:
        from headwise.text import Frames, Patches, as_tokens

        if isinstance(value, (Patches, Frames)):  # every image or sound of the batch is cut in the same way
            value = [value] * max((record.shape[0] for record in self.records), default=1)
        sides = (
            value
            if isinstance(value, Mapping) and value and value.keys() <= {"source", "target"}
            else {"target": value}
        )
        given = {name: None if side is None else as_tokens(side) for name, side in sides.items()}
        target, source = given.get("target"), given.get("source")
        for record in self.records:
            self._axes(record, target, source)
        self._tokens, self._source_tokens = target, source

    @property
    def source_tokens(self) -> list[Tokens] | None:
        """The tokens that the encoder of an encoder-decoder model read; None if they were not set."""
        return self._source_tokens

    def unknown_tokens(self) -> tuple[int, int]:
        """Count the tokens: (the number that the model does not know and reads as [UNK], the number of all tokens)."""
        named = [each for side in (self._source_tokens, self._tokens) for each in side or ()]
        return sum(each.unknown_count for each in named), sum(len(each.labels) for each in named)

    def row_labels(self, record: AttentionRecord, b: int = 0) -> tuple[str, ...] | None:
        """Return the labels of the rows (queries) of example `b`; None if there are no tokens."""
        return self._labels(self.axes(record)[0], b)

    def col_labels(self, record: AttentionRecord, b: int = 0) -> tuple[str, ...] | None:
        """Return the labels of the columns (keys) of example `b`; None if there are no tokens."""
        return self._labels(self.axes(record)[1], b)

    def _labels(self, tokens: list[Tokens] | None, b: int) -> tuple[str, ...] | None:
        if tokens is None:
            return None
        if not -len(tokens) <= b < len(tokens):
            raise ArgumentError(f"b must lie in 0 … {len(tokens) - 1}. Received: b={b}")
        return tokens[b].labels

    def axes(self, record: AttentionRecord) -> tuple[list[Tokens] | None, list[Tokens] | None]:
        """Return the tokens of a record's rows and of its columns. RecordError if neither side has as many tokens.

        The two sides are the source (the encoder's tokens) and the target (the decoder's). In cross-attention the rows
        are the target and the columns the source. Self-attention belongs to the side with as many tokens as its rows;
        if both sides have as many, to the source if "encoder" is a component of its path, else to the target. Rows or
        columns that have names (learned latents) keep them; the other axis then belongs to the side with as many
        tokens.
        """
        return self._axes(record, self._tokens, self._source_tokens)

    def _axes(
        self, record: AttentionRecord, target: list[Tokens] | None, source: list[Tokens] | None
    ) -> tuple[list[Tokens] | None, list[Tokens] | None]:
        batch, _, q_len, k_len = record.shape
        row_names, col_names = (self._make_tokens(labels, batch) for labels in (record.row_names, record.col_names))
        if (target is None and source is None) or (row_names and col_names):
            return row_names, col_names
        name, sides = names.name_of(record), [(target, target), (source, source)]
        if row_names or (not col_names and "encoder" in name.lower().split(".")):
            sides.reverse()
        if record.site is None:
            sides.append((target, source))
        elif record.site.kind == "cross" and not (row_names or col_names):
            sides = [(target, source)]
        for of_rows, of_cols in sides:
            rows, cols = row_names or of_rows, col_names or of_cols
            if _fit(rows, batch, q_len) and _fit(cols, batch, k_len):
                return rows, cols
        received = ", ".join(
            f"{side} tokens={_counts(tokens)}" for side, tokens in (("target", target), ("source", source)) if tokens
        )
        hint = ""
        if source is None and any(each.site is not None and each.site.kind == "cross" for each in self.records):
            hint = '. An encoder-decoder needs both: seen.tokens = {"source": ..., "target": ...}'
        if any(len(each.labels) == q_len + 1 == k_len + 1 for each in target or ()):
            hint = ". The last token that generate() returns was never read: leave it out"
        if len({record.shape[2:] for record in self.records}) > 1 and len(self.records) > len(self.layers):
            hint = ". Of several forward passes choose one first: seen.call(i)"
        raise RecordError(f"{name} has B = {batch}, Q = {q_len}, K = {k_len}. Received: {received}{hint}")

    def _make_tokens(self, labels: tuple[str, ...] | None, batch: int) -> list[Tokens] | None:
        """Make tokens, for each example, from the names of rows or columns."""
        if labels is None:
            return None
        return self._named.setdefault((labels, batch), [Tokens.of_names(labels)] * batch)

    # Numbers.

    def statistics(self, *which: str, **options: Any) -> OfLayers:
        """Compute `record.statistics(*which, **options)` for every layer: a dict from layer name to statistics."""
        from headwise.records.statistics.compute import OfLayers

        return OfLayers({name: self[name].statistics(*which, **options) for name in self.layers})

    def summary(self, row: Place | None = None) -> Summary:
        """Make a table with a row for each head: how widely and how far it attends, and its strongest (query, key).

        `row`: summarise only one query, given by its number or its text: `seen.summary("it")` shows where each head
        attends from "it". See also `to_pandas`.
        """
        from headwise.records.summary import Summary, make_rows

        unknown, tokens = self.unknown_tokens()
        rows = tuple(head for record in self.records for head in make_rows(self, record, row))
        return Summary(rows, tokens, unknown)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the rows of `summary()` as a data frame. Needs pandas: pip install "headwise[pandas]"."""
        return self.summary().to_pandas()

    def save(self, path: str | Path) -> None:
        """Write all records to one file, for `headwise.load`; every program that reads safetensors can read it.

        The file is written beside `path` and then replaces it. Raises FileError if it cannot be written, and
        RecordError if a file cannot hold a record.
        """
        from headwise.records.saving import save

        save(self, path)


def _texts(choice: Any) -> bool:
    """Return whether a choice of rows or columns names tokens by their text."""
    return isinstance(choice, str) or (isinstance(choice, (list, tuple)) and any(isinstance(x, str) for x in choice))


def one_layer(seen: Seen, layer: Layer | None) -> AttentionRecord:
    """Return the record of a layer, given by its number, its name or a part of the name; None = the only layer.

    Raises:
        ArgumentError: there are several layers and `layer` is None, or `layer` is neither a number nor a name.
        RecordError: there is no such layer, or nothing was recorded.
    """
    if layer is None and len(seen) != 1:
        seen.only(0)  # raises if nothing was recorded
        raise ArgumentError(
            f"layer: choose one of the {len(seen.layers)} layers: layer=0 … {len(seen.layers) - 1}, or a name"
        )
    record = seen.records[0] if layer is None else seen[layer]
    if not isinstance(record, AttentionRecord):
        raise ArgumentError(f"layer: expected the number or name of one layer. Received: layer={layer!r}")
    return record


def _found(choice: Any, tokens: list[Tokens] | None, name: str) -> Choice:
    """Replace texts in a choice of rows or columns by their positions. ArgumentError if these differ among examples."""
    if not _texts(choice):
        return choice
    parts = [choice] if isinstance(choice, str) else list(choice)
    of_each: Sequence[Tokens | None] = tokens or [None]
    found = [[find_position(each, one, name) for each in parts] for one in of_each]
    if any(places != found[0] for places in found):
        raise ArgumentError(
            f"{name}: {brief(choice)} is at other positions in other examples: {brief(found)}. Give numbers, or watch "
            "one example at a time"
        )
    return found[0]


def _call_numbers(records: Sequence[AttentionRecord]) -> list[int]:
    """Return each record's number among the calls of its layer; without a module, its index among the records."""
    return [record.site.call if record.site else place for place, record in enumerate(records)]


def _fit(tokens: list[Tokens] | None, batch: int, length: int) -> bool:
    return tokens is not None and len(tokens) == batch and all(len(each.labels) == length for each in tokens)


def _counts(tokens: list[Tokens]) -> str:
    counts = [str(len(each.labels)) for each in tokens]
    return counts[0] if len(counts) == 1 else f"[{names.listed(counts)}]"
