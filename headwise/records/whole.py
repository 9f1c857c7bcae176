"""`WholeRecord`: the record of a whole sequence whose rows (queries) are in several records, called the parts.

The parts come from several processes (`headwise.parallel.joined`) or from several files (`headwise.load` of a folder).
When the whole record is asked for something, such as weights, every part answers for its rows, and the answers are put
in the order of the sequence. `Parts.ask` joins the answers.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn, Protocol

import torch
from torch import Tensor

from headwise.call import Scores, Share
from headwise.errors import ArgumentError, RecordError
from headwise.masks import Mask
from headwise.options import OPTIONS
from headwise.records.computed import ComputedRecord
from headwise.records.fields import stored_fields
from headwise.records.record import AttentionRecord, Choice, Extras, positions
from headwise.records.statistics import Statistic
from headwise.records.statistics.statistic import list_tensors, mapped
from headwise.records.tensor_file import PIECE, Pieced
from headwise.softmax import EMPTY

# The dimensions of the tensors of a record.
DIMS = {"q": "BHQD", "k": "BGKD", **{name: option.dims for name, option in OPTIONS.items()}}
DIMS |= {name: field.dims for name, field in stored_fields(Extras).items()}


class Answer(NamedTuple):
    """The answer of one part (the record of some rows) to a question, or the joint answer of all parts."""

    rows: Sequence[Tensor] = ()  # requested rows of the part, […]; together: in the order of the parts
    sums: Sequence[Tensor] = ()  # together: added
    maxima: Sequence[Tensor] = ()  # together: the largest


Work = Callable[[AttentionRecord], Answer]
Plan = Callable[[], tuple[Sequence[int], Work]]  # (requested rows of each part, the work of each part)


class Parts(Protocol):
    """The parts of a `WholeRecord`: records that have the rows of one sequence, in one or several processes."""

    own: AttentionRecord  # one of the records, from which their common properties are read
    owner: Tensor  # int64 [N]: the number of the part of each row
    count: int

    def ask(self, question: Mapping[str, object], plan: Plan) -> Answer:
        """Ask all parts; return the joint answer. An error in `plan` or in one part's work ends it for all parts."""

    def collect(self, work: Callable[[AttentionRecord], Tensor], counts: Sequence[int], like: Tensor) -> Tensor:
        """Return the rows that `work` gives in all parts, [sum of counts, …], in the process that writes a file.

        In other processes the result may have no rows. `like` has the shape of the rows after the first dimension, and
        their dtype.
        """

    def whole(self, fields: Callable[[], SimpleNamespace]) -> SimpleNamespace:
        """Return `fields()` with every `Pieced` made into a tensor. RecordError if tensors cannot be in one process."""


class Here:
    """The parts of a `WholeRecord` (records of some rows each), if all of them are in this process.

    Raises:
        RecordError: they are not the parts of one record.
    """

    def __init__(self, records: Sequence[AttentionRecord]) -> None:
        self._records = list(records)
        self.own, self.count = self._records[0], len(self._records)
        told = [describe_record(record) for record in self._records]
        for number in range(self.count):
            if told[number] != told[0]:
                name, one, other = next(
                    (key, a, b) for (key, a), b in zip(told[0].items(), told[number].values(), strict=True) if a != b
                )
                raise RecordError(f"parts 0 and {number} are not of one record: {name}={one} and {other}")
            if read_share(self._records[number]).mask != read_share(self.own).mask:
                raise RecordError(f"parts 0 and {number} are not of one record: their masks differ")
        length, there = read_share(self.own).length, sum(record.shape[2] for record in self._records)
        if there < length:
            raise RecordError(f"the {self.count} parts have {there:,} of {length:,} rows")
        self.owner = torch.full((length,), -1, dtype=torch.long)
        for number, record in enumerate(self._records):
            rows = read_share(record).rows
            if bool((self.owner[rows] >= 0).any()):
                raise RecordError(f"part {number} has rows that another one has too")
            self.owner[rows] = number
        self._found: SimpleNamespace | None = None

    def ask(self, question: Mapping[str, object], plan: Plan) -> Answer:
        counts, work = plan()
        asked = [record for record, count in zip(self._records, counts, strict=True) if count] or [self.own]
        found = [work(record) for record in asked]
        return Answer(
            [torch.cat(each) for each in zip(*(one.rows for one in found), strict=True)],
            [functools.reduce(torch.add, each) for each in zip(*(one.sums for one in found), strict=True)],
            [functools.reduce(torch.maximum, each) for each in zip(*(one.maxima for one in found), strict=True)],
        )

    def collect(self, work: Callable[[AttentionRecord], Tensor], counts: Sequence[int], like: Tensor) -> Tensor:
        return torch.cat([like[:0], *(work(each) for each, count in zip(self._records, counts, strict=True) if count)])

    def whole(self, fields: Callable[[], SimpleNamespace]) -> SimpleNamespace:
        if self._found is None:
            made = vars(fields())
            self._found = SimpleNamespace(**{name: _in_memory(x) for name, x in made.items()})
        return self._found


def describe_record(record: AttentionRecord) -> dict[str, object]:
    """Return the properties of a part that must be equal in all parts of one record."""
    share, site = read_share(record), record.site
    batch, heads, _, _ = record.shape
    told = {"layer": site and site.name, "call": site and site.call, "B": batch, "H": heads, "length": share.length}
    if isinstance(record, ComputedRecord):
        return {**told, "kept": "statistics"}
    values = {name: getattr(record.call, name) for name in stored_fields(Scores) if name != "mask"}
    values |= {name: record.extras.unchanged(name) for name in stored_fields(Extras)}
    for name, x in values.items():
        if isinstance(x, Tensor):
            sizes = zip(DIMS[name][-x.ndim :], x.shape, strict=True)
            values[name] = x.dtype, [size for dim, size in sizes if dim not in "QK"]
    return told | values


def read_share(record: AttentionRecord) -> Share:
    """Return the share of a part: which rows and keys of the whole sequence it has. RecordError if it is not a part."""
    share = record.share
    if share is None:
        where = f"{record.site.name}: " if record.site else ""
        raise RecordError(
            f"{where}expected a record of a shared sequence. Received: one of this process alone. The call was not "
            "made by headwise.attention inside context_parallel, or an edit gave it another mask"
        )
    return share


class WholeRecord(AttentionRecord):
    """The record of a whole sequence, [B, H, N, N], made of its parts. It answers like the record of one process.

    Rows and columns are positions of the sequence. A question for some rows is answered by the parts that have them.
    """

    _computed = ()

    def __init__(self, parts: Parts) -> None:
        self.parts, self.site = parts, parts.own.site
        batch, heads, _, _ = parts.own.shape
        # From here on, if the record of one part cannot answer any more, all parts must learn of it (`ask`).
        self._shape = batch, heads, len(parts.owner), len(parts.owner)
        self._mask = read_share(parts.own).mask
        self.row_names = self.col_names = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, N, N), where N is the length of the sequence."""
        return self._shape

    @property
    def share(self) -> None:
        """None: the record has the whole sequence, and not a share (some of its rows and keys)."""
        return None

    @property
    def mask(self) -> Mask | None:
        """The mask of the whole sequence; None = every query sees every key."""
        return self._mask

    @property
    def call(self) -> Scores:
        """The queries, keys and options of the whole sequence. RecordError if several processes have them."""
        found = self.parts.whole(self.fields)
        return Scores(found.q, found.k, mask=found.mask, **{name: getattr(found, name) for name in OPTIONS})

    @property
    def extras(self) -> Extras:  # type: ignore[override]
        """The extras (values, gradients, …) of the whole sequence."""
        found = self.parts.whole(self.fields)
        return Extras(**{name: getattr(found, name) for name in stored_fields(Extras)})

    @property
    def lse(self) -> Tensor:
        """The log-sum-exps, as in `AttentionRecord`."""
        return self._ask("lse")

    def __repr__(self) -> str:
        batch, heads, length, _ = self.shape
        return f"WholeRecord(B={batch}, H={heads}, N={length}, of {self.parts.count} parts, mask={self.mask!r})"

    # Weights.

    def scores(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """Compute scores as in `AttentionRecord`; -inf also for keys that the mask forbids for all rows of a part."""
        return self._tile("scores", rows, cols, heads, EMPTY)

    def weights(
        self, rows: Choice = None, cols: Choice = None, heads: Choice = None, *, rounded: bool = False
    ) -> Tensor:
        """Compute attention weights, [B, heads, rows, cols], as in `AttentionRecord`."""
        return self._tile("weights", rows, cols, heads, 0.0, **({"rounded": True} if rounded else {}))

    def used_weights(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """Return the weights that the model multiplied with its values, as in `AttentionRecord`."""
        return self._tile("used_weights", rows, cols, heads, 0.0)

    def rounding_bound(self, rows: Choice = None, heads: Choice = None) -> Tensor:
        """Bound the difference between these weights and a model's rounded weights, as in `AttentionRecord`."""
        return self._tile("rounding_bound", rows, None, heads, 0.0)

    def _tile(self, name: str, rows: Choice, cols: Choice, heads: Choice, empty: float, **more: Any) -> Tensor:
        _, all_heads, length, _ = self.shape

        def plan() -> tuple[Sequence[int], Work]:
            queries = torch.tensor(positions(rows, length, "rows"), dtype=torch.long)
            keys = None if cols is None else torch.tensor(positions(cols, length, "cols"), dtype=torch.long)
            positions(heads, all_heads, "heads")

            def work(part: AttentionRecord) -> Answer:
                share = read_share(part)
                at, mine = _places(queries, share.rows)
                some: dict[str, Any] = {"rows": at[mine].tolist(), "heads": heads, **more}
                if keys is None:
                    tile, there = getattr(part, name)(**some), share.cols
                else:
                    at, has = _places(keys, share.cols)
                    tile, there = getattr(part, name)(cols=at[has].tolist(), **some), has.nonzero()[:, 0]
                size = length if keys is None else len(keys)
                out = tile.new_full((*tile.shape[:3], size), empty).index_copy_(3, there.to(tile.device), tile)
                return Answer([out.movedim(2, 0)])

            return self._counts(queries), work

        choices = {"rows": rows, "cols": cols, "heads": heads}
        said = {name: list(x) if isinstance(x, Iterable) else x for name, x in choices.items()}
        found = self.parts.ask({"asked": name, **said, **more}, plan)
        return self._in_order(found.rows[0], torch.tensor(positions(rows, length, "rows"), dtype=torch.long))

    def _counts(self, rows: Tensor) -> list[int]:
        """Count, for each part, how many of these rows it has."""
        counts: list[int] = self.parts.owner[rows].bincount(minlength=self.parts.count).tolist()
        return counts

    def _in_order(self, found: Tensor, rows: Tensor) -> Tensor:
        """Bring rows [rows, B, H, …] from the order of the parts into the order of `rows`: [B, H, rows, …]."""
        order = self.parts.owner[rows].argsort(stable=True).to(found.device)
        return torch.empty_like(found).index_copy_(0, order, found).movedim(0, 2)

    # Statistics.

    def _asked(self, names: Sequence[str], options: Mapping[str, Any]) -> list[Statistic]:
        try:
            asked = self.parts.own._asked(names, options)
        except ArgumentError as error:
            self.parts.ask(_make_question(names, options, None), functools.partial(_fail, error))
            raise
        return asked if names else [each for each in asked if not self._why_not(each)]

    def _why_not(self, statistic: Statistic) -> str:
        """Say why a whole sequence's statistic cannot be computed from the statistics of the parts; "" if it can."""
        if not statistic.of_shares:
            return "it does not say how it follows from the answers of several processes (of_shares)"
        if isinstance(self.parts.own, ComputedRecord) and type(statistic.for_share()) is not type(statistic):
            return "it needs the queries and keys, which were not kept (keep=False)"
        return ""

    def _answers(self, asked: Sequence[Statistic], rows: int | None) -> dict[str, Any]:
        all_rows = torch.arange(self.shape[2])
        made: dict[str, Any] = {}

        def plan() -> tuple[Sequence[int], Work]:
            if rows is not None:
                raise ArgumentError(f"statistics: rows= cannot be asked of a record in parts. Received: rows={rows}")
            for each in asked:
                if why := self._why_not(each):
                    raise RecordError(f"{each.name} of the whole sequence is not known: {why}")
            return self._counts(all_rows), work

        def work(part: AttentionRecord) -> Answer:
            answers = part._answers([each.for_share() for each in asked], None)
            share = read_share(part)
            kinds: dict[str, list[Tensor]] = {"rows": [], "sum": [], "max": []}
            for each in asked:
                made[each.name] = found = each.in_whole(answers[each.name], share)
                by_row = each.of_shares == "rows"
                kinds[each.of_shares].extend(x.movedim(2, 0) if by_row else x for x in list_tensors(found))
            return Answer(kinds["rows"], kinds["sum"], kinds["max"])

        question = _make_question([each.name for each in asked], list(map(vars, asked)), rows)
        found = self.parts.ask(question, plan)
        of_kind = {"rows": iter(found.rows), "sum": iter(found.sums), "max": iter(found.maxima)}

        def take(each: Statistic) -> Tensor:
            x = next(of_kind[each.of_shares])
            return self._in_order(x, all_rows) if each.of_shares == "rows" else x

        return {each.name: mapped(lambda _, each=each: take(each), made[each.name]) for each in asked}  # type: ignore[misc]

    # All tensors, for a file or for one process that has all parts.

    def fields(self) -> SimpleNamespace:
        """Return the fields of `Scores` and `Extras`; each tensor with queries or keys is `Pieced` (made in pieces)."""
        own = self.parts.own
        found: dict[str, Any] = {name: getattr(own.call, name) for name in stored_fields(Scores)}
        found |= {name: own.extras.unchanged(name) for name in stored_fields(Extras)}
        found["mask"] = self.mask
        spread = [name for name, x in found.items() if isinstance(x, Tensor) and {"Q", "K"} & set(DIMS[name])]
        sizes = self._sizes(spread)
        keys = self._key_owner()
        for name in spread:
            x, letters, size = found[name], DIMS[name], sizes[name]
            along = next((dim for dim in "QK" if dim in letters and size[letters.index(dim)] == len(keys) > 1), "")
            if along:
                owner = self.parts.owner if along == "Q" else keys
                found[name] = self._pieced(name, letters, letters.index(along), size, owner, x)
        return SimpleNamespace(**found)

    def _sizes(self, names: Sequence[str]) -> dict[str, list[int]]:
        """Find each tensor's shape in the whole sequence. A dimension that broadcasts in all parts broadcasts there."""
        length = len(self.parts.owner)

        def work(part: AttentionRecord) -> Answer:
            _, _, q_len, k_len = part.shape
            lengths, flat = {"Q": q_len, "K": k_len}, []
            for name in names:
                x = _tensor(part, name)
                flat += [
                    (length if size == lengths[letter] else 1) if letter in lengths else size
                    for letter, size in zip(DIMS[name], x.shape, strict=True)
                ]
            return Answer(maxima=[torch.tensor(flat)])

        everybody = [1] * self.parts.count
        found = iter(self.parts.ask({"asked": "sizes", "names": names}, lambda: (everybody, work)).maxima[0].tolist())
        return {name: list(itertools.islice(found, len(DIMS[name]))) for name in names}

    def _key_owner(self) -> Tensor:
        """Find the number of the part that gives each key, int64 [N]; -1 = no part has it.

        If possible it is the part that also has the query at the same position.
        """
        count, owner = self.parts.count, self.parts.owner

        def work(part: AttentionRecord) -> Answer:
            share = read_share(part)
            number = int(owner[share.rows[0]])
            told = torch.zeros(len(owner), dtype=torch.long)
            told[share.cols] = number + 1 + count * (owner[share.cols] == number)
            return Answer(maxima=[told])

        told = self.parts.ask({"asked": "keys"}, lambda: ([1] * count, work)).maxima[0]
        return torch.where(told > 0, (told - 1) % count, -1)

    def _pieced(self, name: str, letters: str, dim: int, size: list[int], owner: Tensor, like: Tensor) -> Pieced:
        """Make a tensor of the whole record that is put together piece by piece while it is written.

        A piece has some indices of the dimensions before `dim`, some positions along `dim`, and all that comes after.
        """
        before, length, after = math.prod(size[:dim]), size[dim], math.prod(size[dim + 1 :])

        def pieces() -> Iterator[Tensor]:
            row, item = max(1, after), like.itemsize
            many = max(1, PIECE // (length * row * item))
            step = length if many > 1 or length * row * item <= PIECE else max(1, PIECE // (row * item))
            for first in range(0, before, many):
                lead = range(first, min(first + many, before))
                for start in range(0, length, step):
                    some = torch.arange(start, min(start + step, length))
                    yield self._piece(name, letters, dim, lead, some, owner[some], like.new_empty(0, len(lead), after))

        return Pieced(tuple(size), like.dtype, pieces)

    def _piece(
        self, name: str, letters: str, dim: int, lead: range, some: Tensor, owner: Tensor, like: Tensor
    ) -> Tensor:
        def work(part: AttentionRecord) -> Tensor:
            share, x = read_share(part), _tensor(part, name)
            at, mine = _places(some, share.rows if letters[dim] == "Q" else share.cols)
            mine &= owner == int(self.parts.owner[share.rows[0]])
            at = at[mine].to(x.device)
            taken = []
            for number in lead:
                where = []
                for size in reversed(x.shape[:dim]):
                    number, place = divmod(number, size)
                    where.append(place)
                one = x[tuple(reversed(where))]  # its first dimension is the one that is cut
                one = one[at if len(one) > 1 else torch.zeros_like(at)]
                if "K" in letters[dim + 1 :] and like.shape[2] == share.length:
                    whole = one.new_zeros(len(at), share.length)
                    one = whole.index_copy_(1, share.cols.to(x.device), one.expand(len(at), len(share.cols)))
                taken.append(one.reshape(len(at), like.shape[2]))
            return torch.stack(taken, 1)

        counts = owner[owner >= 0].bincount(minlength=self.parts.count).tolist()
        found = self.parts.collect(work, counts, like)
        piece = found.new_zeros(len(some), *like.shape[1:])
        order = owner.argsort(stable=True)
        return piece.index_copy_(0, order[len(order) - len(found) :].to(piece.device), found).movedim(1, 0)


def _make_question(names: Sequence[str], options: object, rows: int | None) -> dict[str, object]:
    return {"asked": "statistics", "names": list(names), "options": options, "rows": rows}


def _fail(error: Exception) -> NoReturn:
    raise error


def _places(wanted: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Find positions `wanted` among the ascending positions `there`: (the index of each, whether it is there)."""
    at = torch.searchsorted(there, wanted).clamp_(max=len(there) - 1)
    return at, there[at] == wanted


def _tensor(part: AttentionRecord, name: str) -> Tensor:
    x = getattr(part.call, name) if name in stored_fields(Scores) else part.extras.unchanged(name)
    assert isinstance(x, Tensor)
    return x[(None,) * (len(DIMS[name]) - x.ndim)]


def _in_memory(x: Any) -> Any:
    if not isinstance(x, Pieced):
        return x
    out = torch.empty(math.prod(x.shape), dtype=x.dtype)
    end = 0
    for piece in x.pieces():
        out[end : (end := end + piece.numel())] = piece.reshape(-1)
    return out.view(x.shape)
