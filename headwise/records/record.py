"""A record keeps Q, K, the mask and the scale, not the weights: its memory is linear in the length.

Any cell, row, tile or statistic of the attention matrix is computed again when it is requested, some rows at a time:
A[i, j] = exp(s[i, j] - lse[i]).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from headwise import registry
from headwise.call import AttentionCall, Scores, Share
from headwise.errors import ArgumentError, DtypeError, RecordError, brief
from headwise.masks import Mask
from headwise.options import EVERY, OPTIONS
from headwise.records.rounding import rounded_weights, rounding_bound
from headwise.records.site import Site
from headwise.records.statistics import STATISTICS, Statistic, Statistics, compute, make
from headwise.records.statistics.computed import Computed, look_up
from headwise.records.statistics.lse import LogSumExp, NormaliserOfRows, compute_normaliser
from headwise.registry import Bundle
from headwise.softmax import Normaliser

# To compute log-sum-exps of a few rows, at most so many cells are computed at once. For more cells, or rows longer than
# this (the mask may cut them short), a pass over tiles computes them, as for statistics.
BLOCK_CELLS, BLOCK_KEYS = 2**22, 2**15

Choice = int | slice | Sequence[int] | None


# The names of the extras in messages, and the options of `watch` that keep them.
EXTRAS = {
    "v": ("values", "values=True"),
    "grad": ("output gradients", "gradients=True, and call backward() inside the context"),
    "output_weight": ("the output projection", "values=True"),
    "used": ("the weights that met the values", ""),
}


@dataclasses.dataclass
class Extras:
    """Tensors of a call that only some analyses need, such as its values; None = the tensor was not kept."""

    v: Tensor | None = dataclasses.field(default=None, metadata={"dims": "BGKE"})
    grad: Tensor | None = dataclasses.field(default=None, metadata={"dims": "BHQE"})  # dL/dO
    output_weight: Tensor | None = dataclasses.field(default=None, metadata={"dims": "HEM"})  # W_O
    # The weights that were multiplied with the values, if the model had changed them; heads may have been joined.
    used: Tensor | None = dataclasses.field(default=None, metadata={"dims": "BUQK", "since": 3})

    def __setattr__(self, name: str, x: Tensor | None) -> None:
        super().__setattr__(name, x)
        self.__dict__.setdefault("_versions", {})[name] = _version(x)

    def unchanged(self, name: str) -> Tensor | None:
        """Return the extra tensor of this name. RecordError if it was changed in place since it was stored."""
        x: Tensor | None = getattr(self, name)
        if self.__dict__["_versions"][name] != _version(x):
            what, _ = EXTRAS[name]
            raise RecordError(f"{what} of this record were changed in place after the call. Pass a clone")
        return x

    def __getstate__(self) -> dict[str, Tensor | None]:
        return {name: self.unchanged(name) for name in EXTRAS}

    def __setstate__(self, state: dict[str, Tensor | None]) -> None:
        for name, x in state.items():
            setattr(self, name, x)  # this notes the version of the copy


class AttentionRecord:
    """The attention weights [B, H, Q, K] of one attention call, computed from its queries and keys on request.

    The record holds the tensors of the call itself, detached. If they are changed in place afterwards, the record
    cannot tell any more what the call computed, and raises RecordError; only the mask is copied. The weights are those
    of the softmax, before dropout.

    Args:
        call: the call whose weights are recorded.
        values: whether to keep the call's values too.
        site: where in a model the call was made; None if unknown.
        row_names, col_names: names of the queries and the keys, [Q] and [K], if the model has them: learned latents.
            None = queries and keys are positions of a sequence.
        computed: statistics that were computed during the call, with their answers.
    """

    def __init__(
        self,
        call: Scores,
        *,
        values: bool = False,
        site: Site | None = None,
        row_names: Sequence[str] | None = None,
        col_names: Sequence[str] | None = None,
        computed: Computed = (),
    ) -> None:
        self.site, self._computed = site, computed
        self.extras = Extras(v=call.v.detach() if values and isinstance(call, AttentionCall) else None)
        self._call = call.detached()
        self._versions = _versions(self._call)
        self.row_names, self.col_names = row_names, col_names

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **({"_call": self.call} if "_call" in vars(self) else {})}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_call" in state:
            self._versions = _versions(state["_call"])

    @property
    def call(self) -> Scores:
        """The queries, keys, mask and options of the call. RecordError if a tensor was changed in place."""
        changed = [name for name, version in _versions(self._call).items() if version != self._versions[name]]
        if changed:  # views of one tensor share its count of changes: it is not known which of them was changed
            others = ", or a tensor that shares memory with them," if len(changed) > 1 else ""
            raise RecordError(
                f"{' or '.join(changed)}{others} was changed in place after the call, so the record can no longer say "
                "what the call saw. Pass a clone, or do not modify it in place"
            )
        return self._call

    def check(self) -> None:
        """Raise RecordError if a tensor of the call or of the extras was changed in place, or the call was not kept."""
        _ = self.call
        for name in EXTRAS:
            self.extras.unchanged(name)

    @property
    def q(self) -> Tensor:
        """The queries [B, H, Q, D]."""
        return self.call.q

    @property
    def k(self) -> Tensor:
        """The keys [B, G, K, D], G = number of key heads."""
        return self.call.k

    @property
    def mask(self) -> Mask | None:
        """The mask, aligned to this call's lengths; None = every query sees every key."""
        return self.call.mask

    @property
    def share(self) -> Share | None:
        """The positions of the rows and keys in a sequence that several processes share; None = it is not shared."""
        return self.call.share

    def __getattr__(self, name: str) -> Any:
        """Return an option of the call: `bias`, `slopes`, `scale`, `softcap`, `sinks` or `dropout`."""
        if name in OPTIONS:
            return getattr(self.call, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def v(self) -> Tensor:
        """The values [B, G, K, E] (G = number of key heads). RecordError if they were not kept."""
        return self._extra("v")

    @property
    def grad(self) -> Tensor:
        """The gradient of the loss with respect to this call's output, [B, H, Q, E]. RecordError if it was not kept."""
        return self._extra("grad")

    @property
    def output_weight(self) -> Tensor:
        """The output projection W_O [H, E, M], which multiplies the output of each head. RecordError if unknown."""
        return self._extra("output_weight")

    def _extra(self, name: str) -> Tensor:
        kept = self.extras.unchanged(name)
        if kept is None:
            what, option = EXTRAS[name]
            where = f" of {self.site.name}" if self.site else ""
            raise RecordError(f"this record{where} does not have {what}. Watch the model with {option}")
        return kept

    @property
    def row_names(self) -> tuple[str, ...] | None:
        """The names of the queries [Q], if these are not tokens; can be set to any sequence of Q names, or None."""
        return self._row_names

    @row_names.setter
    def row_names(self, names: Sequence[str] | None) -> None:
        self._row_names = _checked_names("row_names", names, "queries", self.shape[2])

    @property
    def col_names(self) -> tuple[str, ...] | None:
        """The names of the keys [K], if these are not tokens; can be set to any sequence of K names, or None."""
        return self._col_names

    @col_names.setter
    def col_names(self, names: Sequence[str] | None) -> None:
        self._col_names = _checked_names("col_names", names, "keys", self.shape[3])

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The sizes (B, H, Q, K)."""
        return self.call.shape

    def __repr__(self) -> str:
        batch, heads, q_len, k_len = self.shape
        return f"AttentionRecord(B={batch}, H={heads}, Q={q_len}, K={k_len}, mask={self.mask!r})"

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> tuple[Bundle, Bundle]:
        return registry.in_notebook(self)

    def scores(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """Compute the scores before the softmax, [B, heads, rows, cols], float32 or better; -inf where forbidden.

        `rows`, `cols` and `heads` are each None (all), an int (dimension of size 1), a slice or a sequence of ints;
        negative numbers count from the end. Raises ArgumentError, which names the valid range, for a number out of
        range.
        """
        return self.call.scores(self._choose("rows", rows), self._choose("cols", cols), self._choose("heads", heads))

    def weights(
        self, rows: Choice = None, cols: Choice = None, heads: Choice = None, *, rounded: bool = False
    ) -> Tensor:
        """Compute the attention weights of some heads, rows (queries) and columns (keys), [B, heads, rows, cols].

        `rows`, `cols` and `heads` are chosen as in `scores`. A row that attends to nothing is 0. The weights are
        computed in float32 or better from the q and k that are kept. With `rounded` each step is rounded to the dtype
        of q, as eager attention in transformers does: in bfloat16 and float16 this gives exactly the weights of such a
        model, bit by bit.
        """
        call, row_index, head_index = self.call, self._choose("rows", rows), self._choose("heads", heads)
        if rounded:
            return rounded_weights(call, row_index, head_index)[..., self._choose("cols", cols)]
        if cols is None:
            return call.weights(row_index, head_index, overwrite=True)
        if "_normaliser" in self.__dict__ or rows is None:
            found = self._normaliser
            normaliser = Normaliser(*(x[:, head_index][:, :, row_index] for x in found))
        else:
            normaliser = self._compute_normaliser(row_index, head_index)
        return normaliser.weights(call.scores(row_index, self._choose("cols", cols), head_index))

    def used_weights(self, rows: Choice = None, cols: Choice = None, heads: Choice = None) -> Tensor:
        """Return the weights that the model multiplied with its values, [B, heads, rows, cols].

        `rows`, `cols` and `heads` are chosen as in `scores`. The result equals `weights`, unless the model changed the
        weights after the softmax: it mixed the heads (talking heads), subtracted the weights of another softmax
        (differential attention), multiplied them by a gate or a mask, or uses a sigmoid instead of a softmax (`weights`
        then divides each row by its sum). Rows need not sum to 1, weights may be negative, there may be fewer heads,
        and the changed weights are taken after dropout.
        """
        used = self.extras.unchanged("used")
        if used is None:
            return self.weights(rows, cols, heads)
        for dim, (name, choice) in enumerate({"heads": heads, "rows": rows, "cols": cols}.items(), start=1):
            if choice is not None:
                index = torch.tensor(positions(choice, used.shape[dim], name), dtype=torch.long, device=used.device)
                used = used.index_select(dim, index)
        return used.to(torch.promote_types(used.dtype, torch.float32))

    def rounding_bound(self, rows: Choice = None, heads: Choice = None) -> Tensor:
        """Bound the difference between `weights` and the weights of a model that computes in the dtype of q.

        The result is [B, heads, rows, K]. In half precision a model rounds its scores and weights, a record does not.
        `headwise.records.rounding` has the formula.
        """
        return rounding_bound(self.call, self._choose("rows", rows), self._choose("heads", heads))

    @functools.cached_property
    def lse(self) -> Tensor:
        """The log-sum-exp log Σ exp(s) over keys and sink, [B, H, Q]; natural log; -inf if a row has neither."""
        known = look_up(self._computed, [LogSumExp()])
        found: Tensor = known["lse"] if known else self._normaliser.lse
        return found

    @functools.cached_property
    def _normaliser(self) -> Normaliser:
        return compute_normaliser(self.call)

    def statistics(self, *names: str, rows: int | None = None, **options: Any) -> Statistics:
        """Compute statistics of the weights in one pass over them.

        The statistics are attributes of the result; None = not requested.

        Args:
            names: "lse", "entropy", "distance", "offset_mass", "first_visible", "learned_sink", "keys_needed", "top",
                "pooled_mean", "pooled_max", "received", or the name of a statistic that was registered; no name = all.
                The classes with these names in `headwise.records.statistics` describe the statistics.
            rows: use only about so many queries, evenly spread in small groups; for all other queries `lse` is NaN, and
                everything else 0. None = use all queries.
            **options: fields of these classes: top=8, offsets=(1,) in tokens, first_keys=1, share=0.9 of the weight for
                "keys_needed", size=64 for the number of cells of the pooled pictures, (h, w) or one number for both.

        Raises:
            ArgumentError: a name or an option that does not exist, or a value that an option cannot have.
        """
        if rows is not None and rows < 1:
            raise ArgumentError(f"statistics: rows must be at least 1. Received: rows={rows}")
        answers = self._answers(self._asked(names, options), rows)
        return Statistics(**{name: answers.get(name) for name in STATISTICS})

    def _asked(self, names: Sequence[str], options: Mapping[str, Any]) -> list[Statistic]:
        return make(names or tuple(STATISTICS), options)

    def _answers(self, asked: Sequence[Statistic], rows: int | None) -> dict[str, Any]:
        known = look_up(self._computed, asked) if rows is None else {}
        left = [each for each in asked if each.name not in known]
        if rows is None and [each.name for each in left] == ["lse"] and "_normaliser" in self.__dict__:
            return {**known, "lse": self.lse}
        if not left:
            return known
        # Every pass also gives the normalisers.
        found = compute(self.call, [NormaliserOfRows(), *left], rows)
        if rows is None:
            self.__dict__.setdefault("_normaliser", Normaliser(*found["normaliser"].unbind(-1)))
        return {**known, **found}

    def entropy(self) -> Tensor:
        """Compute the entropy -Σ A log A of each row, [B, H, Q], in nats; the learned sink counts as a key."""
        return self._ask("entropy")

    def distance(self) -> Tensor:
        """Compute Σ_j A[i, j] |i - j|, the mean distance in tokens, [B, H, Q]; the last query is at the last key."""
        return self._ask("distance")

    def received(self) -> Tensor:
        """Compute Σ_i A[i, j], the attention that each key gets from all queries: [B, H, K]."""
        return self._ask("received")

    def offset_mass(self, d: int) -> Tensor:
        """Compute A[i, i - d], [B, H, Q]: the weight on the key `d` tokens before the query; 0 if there is none.

        d = 1 measures previous-token heads. If a text repeats a block of T tokens, d = T measures duplicate-token
        heads, and d = T - 1 induction heads.
        """
        return self._ask("offset_mass", offsets=(d,))[..., 0]

    def first_visible(self) -> Tensor:
        """Compute the weight on the first key that any query of the example may see, [B, H, Q]. Xiao et al. 2024."""
        return self._ask("first_visible")

    def keys_needed(self, share: float = 0.9) -> Tensor:
        """Count the fewest keys that hold `share` of a row's weight on keys, int64 [B, H, Q]; 0 for an empty row."""
        return self._ask("keys_needed", share=share)

    def top_k(self, k: int) -> tuple[Tensor, Tensor]:
        """Find the `k` largest weights of each row, descending, and their keys: two tensors [B, H, Q, k]. See `Top`."""
        if not 1 <= k <= self.shape[3]:
            raise ArgumentError(f"top_k: k must be between 1 and the {self.shape[3]} keys. Received: k={k}")
        weights, keys = self._ask("top", top=k)
        return weights, keys

    def pooled(self, size: int | tuple[int, int], how: Literal["mean", "max"] = "mean") -> Tensor:
        """Shrink the matrix to a small picture, [B, H, h, w]: a cell is the mean or maximum of the weights it covers.

        `size` is (h, w), or one number for both, at most (Q, K). See `headwise.records.statistics.pooled`.
        """
        if how not in ("mean", "max"):
            raise ArgumentError(f'pooled: how must be "mean" or "max". Received: how={how!r}')
        return self._ask(f"pooled_{how}", size=size)

    def _ask(self, name: str, **options: Any) -> Tensor:
        answer: Tensor = getattr(self.statistics(name, **options), name)
        return answer

    def _compute_normaliser(self, rows: slice | Tensor, heads: slice | Tensor) -> Normaliser:
        """Compute the normaliser (the two terms of the log-sum-exp) of these rows and heads only: [B, heads, rows]."""
        index, call = torch.arange(self.shape[2], device=self.q.device)[rows], self.call
        scores = call.part(heads=heads)
        batch, some, _, k_len = scores.shape
        if k_len <= BLOCK_KEYS and batch * some * len(index) * k_len <= BLOCK_CELLS:
            return Normaliser.of(call.scores(index, EVERY, heads)).with_sinks(scores.sinks)
        if call.mask is not None and call.mask.heads:
            return Normaliser(*(x[:, heads] for x in compute_normaliser(call, index)))
        return compute_normaliser(dataclasses.replace(scores, mask=call.mask), index)

    def _choose(self, name: str, choice: Choice) -> slice | Tensor:
        if choice is None or isinstance(choice, slice):
            return EVERY if choice is None else choice
        found = positions(choice, self.shape[("heads", "rows", "cols").index(name) + 1], name)
        if found and found == list(range(found[0], found[-1] + 1)):  # a view; an index would copy
            return slice(found[0], found[-1] + 1)
        return torch.tensor(found, dtype=torch.long, device=self.q.device)


def positions(choice: Choice, size: int, name: str) -> list[int]:
    """Return the indices that a choice means: None = all, negative = from the end. ArgumentError if out of range."""
    if choice is None or isinstance(choice, slice):
        return list(range(size)[slice(None) if choice is None else choice])
    try:
        chosen = [choice] if isinstance(choice, int) else [int(i) for i in choice]
    except (TypeError, ValueError) as cause:
        expected = "an integer, a slice or a list of integers"
        raise ArgumentError(f"{name}: expected {expected}. Received: {name}={brief(choice)}") from cause
    if any(not -size <= i < size for i in chosen):
        raise ArgumentError(f"{name} must lie in 0 … {size - 1}. Received: {name}={choice}")
    return [i % size for i in chosen]


def _checked_names(name: str, names: Sequence[str] | None, of: str, count: int) -> tuple[str, ...] | None:
    if names is None:
        return None
    if isinstance(names, str) or len(names) != count or not all(isinstance(each, str) for each in names):
        received = f"len({name})={len(names)}, {name}={brief(names)}"
        raise ArgumentError(f"{name}: expected a name for each of the {count} {of}. Received: {received}")
    return tuple(names)


def _versions(call: Scores) -> dict[str, object]:
    """Return, for each tensor of a call, a value that changes when the tensor does. (The mask is a copy.)"""
    tensors = {"q": call.q, "k": call.k, **call.option_tensors()}
    return {name: _version(x) for name, x in tensors.items()}


def _version(x: Tensor | None) -> object:
    """Return a value that shows changes of `x` in place: torch's count of them.

    Inference tensors have no such count: on the CPU the value is some of their numbers, elsewhere None.
    """
    if x is None or not x.is_inference():
        return None if x is None else x._version
    if x.device.type != "cpu":
        return None
    some = x[tuple(slice(None, None, -(-size // 4) or 1) for size in x.shape)]
    return some.double().numpy().tobytes()


def check_one(record: object, what: str) -> None:
    """Raise DtypeError unless `record` is one record; `what` names the function for the message."""
    if not isinstance(record, AttentionRecord):
        received = type(record).__name__
        raise DtypeError(f"{what} needs one AttentionRecord. Received: record={received}. Choose a layer: seen[0]")
