"""How far each sequence is: the positions of queries and keys in every step of a generation."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.generating import Generating, used_keys
from headwise.capture.sites import Place, kind_of
from headwise.edits.naming import Naming
from headwise.edits.where import Where
from headwise.records.site import is_causal
from headwise.text import Tokens


@dataclasses.dataclass
class _Sequence:
    """One sequence that a layer reads, pass by pass."""

    name: str  # of the layer
    run: int | None  # which call of `generate` reads it
    total: int  # tokens so far, padding included
    padding: Tensor  # [B], how many of them stand before the first real token
    lengths: Tensor  # [B], real tokens of the first pass
    step: int = 0
    tokens: Sequence[Tokens] | None = None


class Progress:
    """The positions of one edit's calls."""

    def __init__(self, generating: Generating, naming: Naming) -> None:
        self._generating, self._naming = generating, naming
        self._sequences: dict[str, _Sequence] = {}
        self._last: _Sequence | None = None  # of the last self-attention: the queries of cross-attention are its own

    def where(self, place: Place, name: str, call: AttentionCall) -> Where:
        """Where a call is made, which is the next pass of its layer."""
        batch, heads, q_len, k_len = call.shape
        kind = kind_of(place, q_len, k_len, is_causal(call.mask, q_len, k_len))
        device = call.q.device
        rows, cols = torch.arange(q_len, device=device), torch.arange(k_len, device=device)
        if kind == "cross":
            first, last = _extent(call)
            keys = _positions(cols, first, last)
            target = self._target(place, name, batch, q_len, first)
            queries = _positions(rows + (target.total - q_len), target.padding)
            names = self._naming.of_source(first.tolist())
            shift, both = k_len - q_len, (target.lengths, last - first)
            return Where(name, kind, target.step, batch, heads, queries, keys, shift, *both, target.tokens, names)
        sequence = self._sequence(place, name, call)
        self._last = sequence
        end = sequence.total if sequence.step else sequence.padding + sequence.lengths  # behind it is padding
        queries = _positions(rows + (sequence.total - q_len), sequence.padding, end)
        # A cache that slides has the last keys; one of a fixed size begins with the first.
        keys = _positions(cols + max(0, sequence.total - k_len), sequence.padding, end)
        shift = sequence.total - q_len - max(0, sequence.total - k_len)
        lengths, tokens = sequence.lengths, sequence.tokens
        return Where(name, kind, sequence.step, batch, heads, queries, keys, shift, lengths, lengths, tokens, tokens)

    def _target(self, place: Place, name: str, batch: int, q_len: int, like: Tensor) -> _Sequence:
        """The sequence of the queries of cross-attention: that of the self-attention before it, if this is edited."""
        known, run = _cache_length(place), self._generating.run
        total = known if known is not None and known >= q_len else q_len
        last = self._last
        if (
            last is not None
            and last.total == total
            and len(last.padding) == batch
            and _stack(last.name) == _stack(name)
        ):
            return last
        before = self._sequences.get(name)
        if before is not None and before.run == run and len(before.padding) == batch and total > before.total:
            before.total, before.step = total, before.step + 1
            return before
        none = torch.zeros_like(like)
        made = self._sequences[name] = _Sequence(name, run, total, none, none + total)
        return made

    def _sequence(self, place: Place, name: str, call: AttentionCall) -> _Sequence:
        batch, _, q_len, k_len = call.shape
        before, run = self._sequences.get(name), self._generating.run
        known = _cache_length(place)
        total = known if known is not None and known >= q_len else None
        goes_on = before is not None and before.run == run and len(before.padding) == batch and q_len < k_len
        if goes_on and total is not None and before is not None:
            goes_on = total > q_len and total != before.total
        if total is None:
            first, last = _extent(call)
            filled = int(last.max())
            total = filled if filled < k_len or before is None or not goes_on else max(k_len, before.total + q_len)
            total = q_len if q_len == k_len else total
        again = before is not None and before.run == run is not None and len(before.padding) == batch
        if again and before is not None and q_len == k_len == total > before.total:  # no cache: all rows again
            before.total, before.step = total, before.step + 1
            return before
        if goes_on and before is not None and total > q_len:
            before.total, before.step = total, before.step + 1
            return before
        first, last = _extent(call)
        whole = total == q_len  # else the cache has tokens that were not seen here
        names = self._naming.of_sequence(name, first.tolist()) if whole else None
        end = last if whole and q_len == k_len else torch.full_like(last, total)
        made = _Sequence(name, run, total, first, end - first, tokens=names)
        self._sequences[name] = made
        return made


def _stack(name: str) -> str:
    """The path of a stack of layers: what comes before the first number."""
    return re.split(r"\.\d", name)[0]


def _extent(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """The first key of each example that any query may attend to, and one more than the last: two [B]."""
    batch, _, _, k_len = call.shape
    used = used_keys(call)
    none = torch.zeros(batch, dtype=torch.long, device=call.q.device)
    if used is None:
        return none, none + k_len
    seen = used.any(1).expand(batch, k_len).to(torch.uint8)
    empty = ~seen.bool().any(-1)
    first, last = seen.argmax(-1), k_len - seen.flip(-1).argmax(-1)
    return first.masked_fill(empty, 0), last.masked_fill(empty, k_len)


def _positions(places: Tensor, padding: Tensor, total: int | Tensor | None = None) -> Tensor:
    """[B, N]: places less the padding; -1 for padding, and for places from `total` on."""
    found = places[None] - padding[:, None]
    if total is not None:
        end = total if isinstance(total, int) else total[:, None]
        found = found.masked_fill(places[None] >= end, -1)
    return found.clamp(min=-1)


def _cache_length(place: Place) -> int | None:
    """How many tokens a cache of transformers has, those that it dropped included; None without one."""
    around: Place | None = place
    while around is not None:
        for each in (*around.keywords.values(), *around.arguments):
            length: Any = getattr(each, "get_seq_length", None)
            if callable(length):
                layer = getattr(place.module, "layer_idx", None)
                try:
                    found = int(length(layer)) if isinstance(layer, int) else int(length())
                except (TypeError, IndexError, KeyError):
                    return None
                return found or None
        around = around.around
    return None
