"""Finds the positions of the queries and keys of a sequence that a layer reads over several passes (a generation)."""

from __future__ import annotations

import dataclasses
import re
import threading
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.generating import used_keys
from headwise.capture.sites import Place, find_kind
from headwise.edits.inputs import Inputs
from headwise.edits.naming import UNKNOWN, Naming, repeated
from headwise.edits.where import Met, Where
from headwise.records.site import is_causal
from headwise.text import Tokens


@dataclasses.dataclass
class _Sequence:
    """A sequence of tokens that a layer reads in one or more passes of the model."""

    name: str  # the path of the layer
    run: int | None  # the number of the call of `generate` that reads the sequence
    total: int  # the number of tokens read so far, padding included
    padding: Tensor  # [B], the number of padding tokens before the first real token
    lengths: Tensor  # [B], the number of real tokens of the prompt
    ends: Tensor  # [B], the index of the first padding token after the last real token
    prompt: int | None = None  # the number of tokens per row, padding included, that were passed to `generate`
    step: int = 0
    ids: list[list[int]] | None = None  # the ids of the prompt, padding included
    tokens: Sequence[Tokens] | None = None

    def go_on(self, total: int) -> None:
        """Note the next pass, after which the layer has read `total` tokens."""
        self.step = 0 if self.prompt is not None and total <= self.prompt else self.step + 1
        self.total, self.ends = total, torch.full_like(self.ends, total)


class Progress(threading.local):
    """Finds the step, the positions and the tokens of each edited call. Each thread has its own sequences."""

    def __init__(self, naming: Naming, inputs: Inputs, met: Met) -> None:
        self._generating, self._naming, self._inputs, self.met = inputs.generating, naming, inputs, met
        self._sequences: dict[str, _Sequence] = {}
        self._last: _Sequence | None = None  # read by the last self-attention; cross-attention has the same queries

    def where(self, place: Place, name: str, call: AttentionCall, nth: int | None) -> Where:
        """Return the `Where` of a call: its layer, step, positions and tokens. The call is the next pass of its layer.

        If several processes share the sequence, positions and lengths are those in the whole sequence.

        Args:
            place: the running module that computes the call.
            name: the path of the layer, with a number if it is called several times in one pass.
            call: the call as the model made it.
            nth: how often the layer ran before in this pass of the model; None = unknown.
        """
        (batch, heads, q_len, k_len), device, share = call.shape, call.q.device, call.share
        causal, step, shift, drafts = is_causal(*call.whole), 0, 0, False
        kind: Literal["self", "cross"] = "self" if share is not None else find_kind(place, q_len, k_len, causal)
        tokens: Sequence[Tokens] | None = None
        if share is not None:
            used = None if share.mask is None else share.mask.used_keys(share.length, share.length)
            first, last = _ends(used, batch, share.length, device)
            queries, keys = (_positions(places.to(device), first, last) for places in (share.rows, share.cols))
            lengths = key_lengths = last - first
            if not self._naming.reads_ids:  # the ids are only those of this process's rows
                given = self._inputs.decodes(name), first.tolist(), lengths.tolist(), share.length
                tokens = self._naming.given(*given, self._inputs)
            names = tokens
        else:
            rows, cols = torch.arange(q_len, device=device), torch.arange(k_len, device=device)
            if kind == "cross":
                first, last = _extent(call)
                of = self._target(place, name, batch, q_len, first)
                keys, shift, key_lengths = _positions(cols, first, last), k_len - q_len, last - first
                names = self._name_source(name, first, key_lengths, k_len)
            else:
                of = self._last = self._sequence(place, name, call)
                # A cache that slides has the last keys; a cache of a fixed size begins with the first key.
                begin = max(0, of.total - k_len)
                keys, shift = _positions(cols + begin, of.padding, of.ends), of.total - q_len - begin
                names, key_lengths = of.tokens, of.lengths
            queries = _positions(rows + (of.total - q_len), of.padding, of.ends)
            step, lengths, tokens = of.step, of.lengths, of.tokens
            drafts = of.prompt is not None and of.step == 0 and of.total > of.prompt
        # A step sees no later key, whatever its mask says.
        stack: Literal["encoder", "decoder"] = "decoder" if kind == "cross" or causal or shift > 0 else "encoder"
        return Where(
            name, kind, stack, step, batch, self._inputs.count_repeats(batch), heads, queries, keys, shift, lengths,
            key_lengths, nth, call, share, drafts, tokens, names, self.met, self._naming.normal,
        )  # fmt: skip

    def _target(self, place: Place, name: str, batch: int, q_len: int, like: Tensor) -> _Sequence:
        """Return the sequence to which the queries of a cross-attention belong.

        It is the sequence of the self-attention that ran before, if an edit selects that layer too. Otherwise the
        sequence is followed for this layer alone.
        """
        known, run = _cache_length(place), self._generating.run
        total = known if known is not None and known >= q_len else q_len
        last = self._last
        if (
            last is not None
            and last.total == total
            and len(last.padding) == batch
            and _stack(last.name) == _stack(name)
        ):
            self._sequences[name] = dataclasses.replace(last, name=name)  # for passes without a self-attention to ask
            return last
        before = self._sequences.get(name)
        if before is not None and before.run == run and len(before.padding) == batch and total > before.total:
            before.go_on(total)
            return before
        none = torch.zeros_like(like)
        return self._begin(name, batch, q_len, total, (none, none + total), None)

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
            before.go_on(total)
            return before
        if goes_on and before is not None and total > q_len:
            before.go_on(total)
            if run is None and q_len > 1:  # a prompt in several parts, or another turn
                before.step, before.prompt = 0, None
                before.padding, before.ends = self._extent(name, batch, total, (before.padding, before.ends))
                before.lengths = before.ends - before.padding
                self._name(before, batch, q_len, None)
            return before
        first, last = _extent(call)
        if not total == q_len == k_len:  # if a window hides keys, it is not known whether they are padding
            first, last = (first if total == q_len else torch.zeros_like(first)), torch.full_like(last, total)
        prompt = self._inputs.prompt(name, total, batch, has_cache=known is not None)
        return self._begin(name, batch, q_len, total, (first, last), prompt)

    def _begin(
        self, name: str, batch: int, q_len: int, total: int, extent: tuple[Tensor, Tensor], prompt: Tensor | None
    ) -> _Sequence:
        """Begin to follow a sequence, at its first pass inside the context; return its state after this pass."""
        columns = total if prompt is None else prompt.shape[1]
        first, last = self._extent(name, batch, columns, extent)
        ends = last if columns == total else torch.full_like(last, total)
        lengths = (last if columns == total or last is not extent[1] else torch.full_like(last, columns)) - first
        made = _Sequence(name, self._generating.run, total, first, lengths, ends, None if prompt is None else columns)
        self._sequences[name] = made
        self._name(made, batch, q_len, prompt)
        return made

    def _extent(self, name: str, batch: int, length: int, otherwise: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Return each example's first real token, and its last + 1, by the padding mask; without one `otherwise`."""
        real = self._inputs.real(name, length, batch)
        return otherwise if real is None else _ends(real[:, None], batch, length, otherwise[0].device)

    def _name(self, sequence: _Sequence, batch: int, q_len: int, prompt: Tensor | None) -> None:
        """Find the texts of the tokens of a prompt, or of its next part, and store them in `sequence.tokens`."""
        name, padding, lengths = sequence.name, sequence.padding.tolist(), sequence.lengths.tolist()
        if not self._naming.reads_ids:
            total, decodes = sequence.prompt or sequence.total, self._inputs.decodes(name)
            if sequence.tokens is None:
                sequence.tokens = self._naming.given(decodes, padding, lengths, total, self._inputs)
            return
        now = self._inputs.ids(name, q_len) if prompt is None else prompt
        if now is not None and batch % len(now) == 0:
            before = sequence.ids if sequence.ids is not None and prompt is None else [[]] * batch
            gap = 0 if prompt is not None else sequence.total - q_len - len(before[0])
            rows = zip(before, repeated(now.tolist(), batch), strict=True)
            sequence.ids = [[*a, *[UNKNOWN] * gap, *b] for a, b in rows]
            real = zip(sequence.ids, padding, strict=True)
            sequence.tokens = self._naming.names([row[start:] for row, start in real])

    def _name_source(self, name: str, first: Tensor, lengths: Tensor, k_len: int) -> Sequence[Tokens] | None:
        """Return the named tokens of the sequence that cross-attention reads, for each example; None if unknown."""
        padding = first.tolist()
        if not self._naming.reads_ids:
            return self._naming.given(False, padding, lengths.tolist(), k_len, self._inputs)
        ids = self._inputs.source_ids(name, k_len)
        if ids is None or len(padding) % len(ids):
            return None
        rows = zip(repeated(ids.tolist(), len(padding)), padding, strict=True)
        return self._naming.names([row[start:] for row, start in rows])


def _stack(name: str) -> str:
    """Return the path of the stack of layers to which a layer belongs: the part of its path before the first number."""
    return re.split(r"\.\d", name)[0]


def _extent(call: AttentionCall) -> tuple[Tensor, Tensor]:
    """Return for each example the first key to which any query may attend, and the last such key + 1, [B] each."""
    batch, _, _, k_len = call.shape
    return _ends(used_keys(call), batch, k_len, call.q.device)


def _ends(used: Tensor | None, batch: int, k_len: int, device: torch.device) -> tuple[Tensor, Tensor]:
    none = torch.zeros(batch, dtype=torch.long, device=device)
    if used is None:
        return none, none + k_len
    seen = used.to(device).any(1).expand(batch, k_len).to(torch.uint8)
    empty = ~seen.bool().any(-1)
    first, last = seen.argmax(-1), k_len - seen.flip(-1).argmax(-1)
    return first.masked_fill(empty, 0), last.masked_fill(empty, k_len)


def _positions(places: Tensor, padding: Tensor, ends: Tensor) -> Tensor:
    """Return each token's position, [B, N]: its index `places` minus the `padding` before it; -1 for padding."""
    found = places[None] - padding[:, None]
    return found.masked_fill(places[None] >= ends[:, None], -1).clamp(min=-1)


def _cache_length(place: Place) -> int | None:
    """Return how many tokens, dropped ones too, the transformers cache of a module has read; None = no cache."""
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
