"""The base class of masks: it says which pairs of a query and a key are allowed, one by one or for whole rectangles.

`allows(b, h, q, k)` answers for single pairs, `extent(...)` for rectangles of pairs; True = may attend, always. From
these two answers come the dense mask, the additive mask, the blocks a kernel may skip, FlexAttention's BlockMask and
the drawing. `&`, `|` and `~` combine both answers; nothing of size Q × K is built unless it is asked for.

Positions. The last query is at the position of the last key (bottom-right alignment), so that a step with a cache is
right by default: query q has position q + K - Q on the key axis. `aligned(q_len, k_len)` fixes that offset; a mask that
was not aligned answers as if Q == K.
"""

from __future__ import annotations

import dataclasses
import html
import operator
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError, brief
from headwise.masks import drawing, fields
from headwise.masks.block_runs import BlockRuns, block_runs
from headwise.masks.extent import Extent, Rectangles
from headwise.masks.memo import MISSING, Memo, copy_tensor, find_source, read_contents
from headwise.masks.relation import Allowed, Index, Relation
from headwise.tracing import is_plain

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask

T = TypeVar("T")
_ITSELF = object()  # is stored in a memo in place of the memo's own mask: a cycle would delay freeing it
_KEPT = {"_memo", "_owned", "_tensors"}  # attributes of a mask that do not define its answers

UNSIZED = 8, 8  # queries and keys in the picture of a mask without fixed lengths

# The masks that can be written as data: kind -> class.
KINDS: dict[str, type[Mask]] = {}


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Mask(Relation):
    """Which queries may attend to which keys. Immutable; combine with `&`, `|`, `~`.

    The tables of a mask (the tensors that it reads) may be tensors of the caller, who may write to them: every question
    is answered for the contents that they have when it is asked. A call and its record work with `owned()`, a copy
    whose tables nobody else can change.

    A subclass is a frozen dataclass that defines `allows` and, where it can do better than evaluating every cell (pair
    of a query and a key), `extents`, the answer for rectangles: ALL, SOME or NONE of the pairs are allowed. `extents`
    is called exact if it says SOME only where some pairs are allowed and some are not. Nothing else is needed: kernels,
    records and files accept such a mask (files store its answers). The subclass may also declare:

    - A `kind=` in the class statement, and fields by `fields.number` and `fields.table`: then files store its fields,
      `repr` can write the mask as a call of `function=` (by default of its kind), and the mask knows its sizes.
    - A last field `offset`: `aligned` sets it to K - Q if it is None.
    - `check`, if not every pair of lengths (Q, K) is valid.
    """

    kind: ClassVar[str | None] = None
    function: ClassVar[str]
    declared: ClassVar[dict[str, fields.Number | fields.Table | fields.Parts]] = {}
    unfit: ClassVar[str] = "Make one for these lengths"  # advice in the error for other lengths

    def __init_subclass__(cls, *, kind: str | None = None, function: str | None = None) -> None:
        cls.declared = {**cls.declared, **fields.declared_in(vars(cls))}
        cls.kind, cls.function = kind, function or kind or cls.__name__
        if kind is not None:
            KINDS[kind] = cls

    @property
    def batch(self) -> int | None:
        """The batch size for which this mask is made; None if it is the same for all examples."""
        return self._size("B", shared=1)

    @property
    def heads(self) -> int | None:
        """The number of query heads for which this mask is made; None if it is the same for all heads."""
        return self._size("H", shared=1)

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        """The number of queries and the number of keys that a call must have; None = any number."""
        return self._size("q"), self._size("k")

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        """The masks that must all allow a pair: a and b for `a & b`; only the mask itself for any other mask."""
        return (self,)

    def natural_lengths(self) -> tuple[int, int] | None:
        """Return the (Q, K) with which to draw the mask, if it is made for certain lengths; else None."""
        q_len, k_len = self.fixed_lengths
        return None if k_len is None else (k_len if q_len is None else q_len, k_len)

    def _size(self, dim: str, *, shared: int | None = None) -> int | None:
        for name, declared in self.declared.items():
            if isinstance(declared, fields.Table) and dim in declared.dims:
                size: int = getattr(self, name).shape[declared.dims.index(dim)]
                if size != shared:
                    return size
        return None

    @property
    def shift(self) -> int:
        """The position of the first query on the key axis: the offset, or 0 while the offset is not known."""
        return getattr(self, "offset", None) or 0

    @property
    def cellwise(self) -> bool:
        """Whether rectangles are answered by evaluating their cells, which costs as much as the dense mask."""
        return type(self).extents is Mask.extents

    def patterns(self, r: Rectangles) -> list[Tensor]:
        """Return tensors of integers [B|1, H|1, *r.shape] that identify the cells of partly allowed rectangles.

        Two rectangles of one size, in one example and head, have the same cells if all these integers are equal. This
        default identifies each rectangle by its position, so that no two are taken for equal.
        """
        places = (r.k_lo,) if self.key_only else (r.q_lo, r.k_lo)
        return [x.expand(r.shape)[None, None] for x in places]

    def check(self, q_len: int, k_len: int) -> None:
        """Raise MaskError if the mask does not fit these lengths, or if its fields do not belong together."""
        q_fixed, k_fixed = self.fixed_lengths
        if q_fixed not in (q_len, None) or k_fixed not in (k_len, None):
            made_for = " and ".join(f"{x} = {n}" for x, n in (("Q", q_fixed), ("K", k_fixed)) if n is not None)
            raise MaskError(
                f"{self.function}: the mask was made for {made_for}, the call has Q = {q_len} and K = {k_len}. "
                f"Received: mask={brief(self)}. {self.unfit}"
            )

    def align(self, q_len: int, k_len: int) -> Mask:
        """Return this mask for these lengths. `aligned` calls it for the owned copy, and remembers the result."""
        self.check(q_len, k_len)
        return dataclasses.replace(self, offset=k_len - q_len) if getattr(self, "offset", 0) is None else self  # type: ignore[call-arg]

    @property
    def key_only(self) -> bool:
        """Whether the answer depends only on the key, so that a table [B, 1, 1, K] is enough."""
        return False

    def band(self) -> tuple[float, float] | None:
        """Return the (lowest, highest) allowed k - q, if exactly the pairs between are allowed; else None."""
        return None

    # Everything below follows from the above.

    def aligned(self, q_len: int, k_len: int) -> Mask:
        """Return an owned copy for these lengths, the last query at the last key's position. MaskError if unfit.

        Owned means that nobody else has its tables (tensors), so that nobody can change them.
        """
        return self.remember(("aligned", q_len, k_len), lambda mask: mask.align(q_len, k_len))

    def owned(self) -> Mask:
        """Return this mask as it is now, with tables that nobody else can change: a call and its record use this copy.

        Returns the same object as before, with its memo (remembered answers), as long as the contents of every table
        are the same. `memo.read_contents` says how this is found out, and its cost. A mask without tables is returned
        as it is.
        """
        mine = self.__dict__
        if "_memo" in mine or not is_plain():
            return self
        tables = self.tensors
        if not tables:
            return mark_owned(self)
        contents = [read_contents(find_source(x)) for x in tables]
        known: tuple[list[Hashable], Mask] | None = mine.get("_owned")
        if known is not None and known[0] == contents:
            return known[1]
        copy = mark_owned(self.copied())
        if contents == [read_contents(find_source(x)) for x in tables]:  # otherwise somebody wrote to them meanwhile
            mine["_owned"] = contents, copy
        return copy

    def copied(self) -> Mask:
        """Make a new copy for `owned`, without looking for an earlier copy."""
        copy = object.__new__(type(self))
        copy.__dict__.update((name, _copied(value)) for name, value in self.__getstate__().items())
        return copy

    def to_bool(self, q_len: int, k_len: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
        """Return the dense mask, bool [B|1, H|1, Q, K], True = may attend. `k_len` defaults to `q_len`.

        `device` defaults to the device of the mask's tensors, or to torch's default device if the mask has no tensors.
        """
        k_len = q_len if k_len is None else k_len
        device = self.device if device is None else device
        return self.aligned(q_len, k_len).cells(torch.arange(q_len, device=device), torch.arange(k_len, device=device))

    def to_additive(
        self,
        q_len: int,
        k_len: int | None = None,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Tensor:
        """Return numbers to add to the scores, [B|1, H|1, Q, K]: 0 where attention is allowed, -inf elsewhere.

        `device` is the same as in `to_bool`.
        """
        allowed = self.to_bool(q_len, k_len, device=device)
        return torch.zeros(allowed.shape, dtype=dtype, device=allowed.device).masked_fill_(~allowed, -torch.inf)

    def to_block_mask(
        self, q_len: int, k_len: int | None = None, *, block_size: int = 128, device: torch.device | str = "cpu"
    ) -> BlockMask:
        """Make FlexAttention's BlockMask from the mask's answers for rectangles, without the dense mask."""
        from torch.nn.attention.flex_attention import BlockMask

        k_len = q_len if k_len is None else k_len
        mask = self.aligned(q_len, k_len).to(device)
        codes = mask.blocks(q_len, k_len, block_size).to(device)
        # A block that extends beyond the edge must be masked: FlexAttention does not cut full blocks at the end.
        if k_len % block_size:
            codes[..., -1].clamp_(max=Extent.SOME)
        if q_len % block_size:
            codes[..., -1, :].clamp_(max=Extent.SOME)
        partial, full = (codes == Extent.SOME), (codes == Extent.ALL)
        return BlockMask.from_kv_blocks(
            *_count_and_order(partial),
            *_count_and_order(full),
            BLOCK_SIZE=block_size,
            mask_mod=lambda b, h, q, k: mask.allows(b, h, q, k),  # torch recognises mask_mods by their four parameters
            seq_lengths=(q_len, k_len),
        )

    def blocks(self, q_len: int, k_len: int, block_q: int, block_k: int | None = None) -> Tensor:
        """Return the extent code of each block, int8 [B|1, H|1, ⌈Q/block_q⌉, ⌈K/block_k⌉].

        The codes: 0 = no pair of the block is allowed, 1 = some pairs, 2 = all pairs. Blocks at the end may be smaller.
        """
        block_k = block_q if block_k is None else block_k
        mask, sizes = self.aligned(q_len, k_len), (q_len, k_len, block_q, block_k)
        if not (q_len and k_len):
            return mask.nothing(-(-q_len // block_q), -(-k_len // block_k))
        return mask.remember(("blocks", *sizes), lambda mask: mask.grid(*sizes)).clone()

    def runs_of_blocks(self, q_len: int, k_len: int, block_q: int, block_k: int | None = None) -> BlockRuns:
        """Return the result of `blocks` as runs of neighbouring blocks, without a code for each block."""
        block_k = block_q if block_k is None else block_k
        mask, sizes = self.aligned(q_len, k_len), (q_len, k_len, block_q, block_k)
        return mask.remember(("block runs", *sizes), lambda mask: block_runs(mask, *sizes))

    def used_keys(self, q_len: int, k_len: int) -> Tensor | None:
        """Find the keys to which at least one query may attend: bool [B|1, H|1, K]; None = all keys.

        The answer is exact. A key that no query may attend to may be NaN or inf, and must not reach the output.
        """

        def find(mask: Mask) -> Tensor | None:
            used = mask.seen_keys(q_len, k_len) if q_len and k_len else mask.nothing(k_len) > 0
            return None if bool(used.all()) else used

        return self.aligned(q_len, k_len).remember(("used", q_len, k_len), find)

    def causal_rows(self, q_len: int, k_len: int) -> Tensor:
        """Find the queries, except the last, that may attend to no later key: bool [B|1, H|1, Q - 1]."""

        def look(mask: Mask) -> Tensor:
            if not k_len:
                return mask.nothing(max(0, q_len - 1)) == Extent.NONE
            # The last query has no later key: it is at the position of the last key.
            q = torch.arange(max(0, q_len - 1), device="cpu")
            later = (q + k_len - q_len + 1).clamp(min=0)
            return mask.rectangles(q, q + 1, later, torch.full_like(q, k_len)) == Extent.NONE

        return self.aligned(q_len, k_len).remember(("causal", q_len, k_len), look)

    def to(self, device: torch.device | str) -> Mask:
        """Return this mask with its tensors on `device`."""
        moved: dict[str, Any] = {}
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(value, (Tensor, Mask)):
                moved[f.name] = value.to(device)
            elif isinstance(value, tuple):
                moved[f.name] = tuple([part.to(device) for part in value])
        return dataclasses.replace(self, **moved) if moved else self

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors that the mask holds, including those of the masks of which it is made."""
        if torch.compiler.is_compiling():
            return _tensors_in(self)
        found: tuple[Tensor, ...] | None = self.__dict__.get("_tensors")
        if found is None:
            found = self.__dict__["_tensors"] = _tensors_in(self)
        return found

    @property
    def device(self) -> torch.device | None:
        """The device of the mask's tensors; None if it has no tensors."""
        tensors = self.tensors
        return tensors[0].device if tensors else None

    def draw(self, q_len: int, k_len: int | None = None, *, b: int = 0, h: int = 0) -> str:
        """Draw the matrix as text, one line per query: ■ = may attend, · = may not."""
        allowed = self.to_bool(q_len, k_len, device="cpu")
        rows = allowed[b if self.batch else 0, h if self.heads else 0].tolist()
        return "\n".join(" ".join("■" if cell else "·" for cell in row) for row in rows)

    def remember(self, key: tuple[Hashable, ...], make: Callable[[Any], T]) -> T:
        """Return `make(mask)` for the owned copy of this mask, or the result of an earlier call with the same key.

        Results are kept while the contents of the tables do not change. `key[0]` is the purpose of a result; for each
        purpose the last used results are kept, see `memo.KEPT`. If `make` returns a mask, it is owned too.
        """
        if not is_plain():
            return make(self)
        mask: Any = self.owned()
        memo: Memo = mask.__dict__["_memo"]
        found = memo.find(key)
        if found is MISSING:
            # The result is made outside of inference mode: a later call may save it for backward.
            with torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext():
                found = make(mask)
            if isinstance(found, Mask):
                mark_owned(found)
            memo.keep(key, _ITSELF if found is mask else found)
        return mask if found is _ITSELF else found

    def recall(self, key: tuple[Hashable, ...]) -> tuple[Mask, Any]:
        """Return the owned copy of this mask, and what was kept there with this key (`keep`); None = nothing.

        Only where `is_plain`, as all that has a memo.
        """
        mask = self.owned()
        found = mask.__dict__["_memo"].find(key)
        return mask, None if found is MISSING else found

    def keep(self, key: tuple[Hashable, ...], value: object) -> None:
        """Keep a value with this owned mask, as `remember` does. The value does not refer to the mask (a cycle)."""
        self.__dict__["_memo"].keep(key, value)

    def __getstate__(self) -> dict[str, Any]:
        # The memo is not pickled or copied: it can be large, and can be made again. (Another thread may add to it.)
        return {name: value for name, value in dict(self.__dict__).items() if name not in _KEPT}

    def __and__(self, other: Mask) -> Mask:
        return And((self, _beside("&", other)))

    def __or__(self, other: Mask) -> Mask:
        return Or((self, _beside("|", other)))

    __rand__, __ror__ = __and__, __or__  # an operand that is not a mask is refused

    def __invert__(self) -> Mask:
        return self.part if isinstance(self, Not) else Not(self)

    def __bool__(self) -> NoReturn:
        raise DtypeError(
            "a mask has no truth value: expected `&`, `|` and `~` between masks, or `is not None`. "
            f"Received: mask={brief(self)}. Use them instead of `and`, `or`, `not` and `if`"
        )

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self) if f.compare)

    def __hash__(self) -> int:
        values = (getattr(self, f.name) for f in dataclasses.fields(self) if f.compare)
        return hash((type(self), *(tuple(v.shape) if isinstance(v, Tensor) else v for v in values)))

    def __repr__(self) -> str:
        """Return the Python call that makes this mask: `eval(repr(mask)) == mask`. A large table becomes `<…>`."""
        written = []
        for name, declared in self.declared.items():
            value = getattr(self, name)
            if isinstance(declared, fields.Table):
                written.append(declared.show(name, value))
            elif name != "offset":
                written.append(repr(value))
            elif value is not None:
                written.append(f"offset={value}")
        return f"{self.function}({', '.join(written)})"

    def _drawn_lengths(self) -> tuple[int, int]:
        """Return the (Q, K) of the mask's picture; (0, 0) = no picture, because no lengths suit all its parts."""
        lengths = self.natural_lengths() or UNSIZED
        try:
            self.aligned(*lengths)
        except MaskError:
            return 0, 0
        return lengths

    def _repr_html_(self) -> str:
        q_len, k_len = self._drawn_lengths()
        if not (q_len and k_len):
            return f"<code>{html.escape(repr(self))}</code>"
        about = f"{q_len} queries (down) × {k_len} keys (across)"
        if (self.batch or 1) > 1 or (self.heads or 1) > 1:
            about += ", of the first example and head"
        if self.natural_lengths() is None:
            about += ", for example"
        size = -(-max(q_len, k_len) // drawing.MOST)
        return drawing.draw_svg(repr(self), self.blocks(q_len, k_len, size)[0, 0], size, about)

    def __rich__(self) -> Any:
        from rich.panel import Panel
        from rich.text import Text

        q_len, k_len = self._drawn_lengths()
        if not (q_len and k_len) or max(q_len, k_len) > 32:
            return Text(repr(self))
        return Panel(Text(self.draw(q_len, k_len)), title=repr(self), expand=False)


def _tensors_in(value: Any) -> tuple[Tensor, ...]:
    if isinstance(value, Tensor):
        return (value,)
    if isinstance(value, Mask):
        value = list(value.__getstate__().values())
    found: tuple[Tensor, ...] = ()
    if isinstance(value, (list, tuple)):
        for each in value:
            found += _tensors_in(each)
    return found


def mark_owned(mask: T) -> T:
    """Mark a mask as owned: nobody else has its tables, so `owned()` returns the mask without comparing tables."""
    mask.__dict__.setdefault("_memo", Memo())
    return mask


def _copied(value: Any) -> Any:
    """Copy a field's value for a copy of its mask: tensors are copied, masks become owned, also in lists and tuples."""
    if isinstance(value, Tensor):
        return copy_tensor(value)
    if isinstance(value, Mask):
        return value.owned()
    return type(value)([_copied(each) for each in value]) if type(value) in (list, tuple) else value


class Combined(Mask):
    """A mask that is made from other masks, its `parts`."""

    parts: tuple[Mask, ...]

    @property
    def batch(self) -> int | None:
        return _one_size("examples", [part.batch for part in self.parts])

    @property
    def heads(self) -> int | None:
        return _one_size("heads", [part.heads for part in self.parts])

    @property
    def key_only(self) -> bool:
        return all(part.key_only for part in self.parts)

    @property
    def cellwise(self) -> bool:
        return any(part.cellwise for part in self.parts)

    def patterns(self, r: Rectangles) -> list[Tensor]:
        """Return the `patterns` of the parts (0 where a part is not SOME), and the extent codes of all parts."""
        coarse, found = dataclasses.replace(r, coarse=True), []
        for part in self.parts:
            codes = part.extents(coarse)
            found += [codes, *(torch.where(codes == Extent.SOME, x, 0) for x in part.patterns(r))]
        return found

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        columns = zip(*(part.fixed_lengths for part in self.parts), strict=True)
        q_len, k_len = (next((n for n in column if n is not None), None) for column in columns)
        return q_len, k_len

    def natural_lengths(self) -> tuple[int, int] | None:
        found = [lengths for part in self.parts if (lengths := part.natural_lengths())]
        if not found:
            return None
        q_len, k_len = self.fixed_lengths
        k_len = max(keys for _, keys in found) if k_len is None else k_len
        return k_len - max(keys - queries for queries, keys in found) if q_len is None else q_len, k_len


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class _Joined(Combined):
    """Several masks (the `parts`) joined by `&` or by `|`. A part with the same operator is replaced by its parts."""

    parts: tuple[Mask, ...] = fields.parts(several=True)

    sign: ClassVar[str]
    operator: ClassVar[Callable[[Any, Any], Any]]
    join: ClassVar[Callable[[Tensor, Tensor], Tensor]]  # of extent codes
    settled: ClassVar[Extent]  # the code that no further part can change

    def __post_init__(self) -> None:
        flat: list[Mask] = []
        for part in self.parts:
            flat.extend(part.parts if isinstance(part, _Joined) and type(part) is type(self) else [part])
        object.__setattr__(self, "parts", tuple(flat))

    def align(self, q_len: int, k_len: int) -> Mask:
        parts = []
        for part in self.parts:  # (a comprehension would double the depth of the stack)
            parts.append(part.aligned(q_len, k_len))  # noqa: PERF401
        return type(self)(tuple(parts))

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        allowed = self.parts[0].allows(b, h, q, k)
        for part in self.parts[1:]:
            allowed = type(self).operator(allowed, part.allows(b, h, q, k))
        return allowed

    def extents(self, r: Rectangles) -> Tensor:
        # A mask that must evaluate cells is asked last, and only where the answer is not settled yet.
        cheap_first = sorted(self.parts, key=lambda part: part.cellwise)
        codes = cheap_first[0].extents(r)
        for part in cheap_first[1:]:
            open_ = (codes != self.settled).flatten(0, 1).any(0)
            r = dataclasses.replace(r, wanted=open_ if r.wanted is None else open_ & r.wanted)
            codes = type(self).join(codes, part.extents(r))
        return codes

    def __repr__(self) -> str:
        return f" {self.sign} ".join(f"({part!r})" if isinstance(part, Or) else repr(part) for part in self.parts)


class And(_Joined, kind="and"):
    """The mask `a & b`: the pairs that every part allows. `extents` may say SOME for NONE if two parts say SOME."""

    sign, operator, join, settled = "&", operator.and_, torch.minimum, Extent.NONE

    @property
    def conjuncts(self) -> tuple[Mask, ...]:
        return self.parts

    def band(self) -> tuple[float, float] | None:
        bands = [part.band() for part in self.parts]
        if any(band is None for band in bands):
            return None
        return max(band[0] for band in bands if band), min(band[1] for band in bands if band)


class Or(_Joined, kind="or"):
    """The mask `a | b`: the pairs that any part allows. `extents` may say SOME for ALL if two parts say SOME."""

    sign, operator, join, settled = "|", operator.or_, torch.maximum, Extent.ALL


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Not(Combined, kind="not"):
    """The mask `~part`: allows the pairs that the mask `part` does not allow."""

    part: Mask = fields.parts(several=False)

    @property
    def parts(self) -> tuple[Mask, ...]:  # type: ignore[override]
        return (self.part,)

    def align(self, q_len: int, k_len: int) -> Mask:
        return Not(self.part.aligned(q_len, k_len))

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return self.part.allows(b, h, q, k) ^ True  # `~` of a Python bool would be an int

    def extents(self, r: Rectangles) -> Tensor:
        return 2 - self.part.extents(r)

    def __repr__(self) -> str:
        return f"~({self.part!r})" if isinstance(self.part, _Joined) else f"~{self.part!r}"


def _count_and_order(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return, for each row of blocks, the number of True blocks, and the indices of all columns, True blocks first."""
    order = torch.argsort(blocks.to(torch.int8), dim=-1, descending=True, stable=True)
    return blocks.sum(-1, dtype=torch.int32), order.to(torch.int32)


def _one_size(what: str, sizes: list[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    if any(size != known[0] for size in known):
        received = sorted(set(known))
        raise MaskError(f"masks made for different numbers of {what} cannot be combined. Received: {received}")
    return known[0] if known else None


def _beside(sign: str, other: object) -> Mask:
    if isinstance(other, Mask):
        return other
    raise DtypeError(
        f"{sign}: expected a mask on both sides. Received: {type(other).__name__}. "
        "Make one of a bool tensor: masks.from_tensor(x) of [Q, K], masks.padding(x) of [B, K]"
    )


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.shape == b.shape and a.device == b.device and torch.equal(a, b)
    return bool(a == b)
