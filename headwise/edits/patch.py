"""Activation patching: replace attention weights, outputs or vectors of this run by those of another run."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from headwise.analyses.stack import attended_values, by_key_head
from headwise.call import AttentionCall
from headwise.capture.generating import used_keys
from headwise.edits.edit import Chosen, Edit
from headwise.edits.positions import Positions, check_positions, select_keys, select_queries
from headwise.edits.run import CELLS
from headwise.edits.where import Where
from headwise.errors import ArgumentError, RecordError, ShapeError
from headwise.records import AttentionRecord, Seen
from headwise.records.names import Choice, listed

if TYPE_CHECKING:
    from typing_extensions import Unpack

What = Literal["weights", "output", "q", "k", "v"]
WHAT: tuple[What, ...] = ("weights", "output", "q", "k", "v")


@dataclasses.dataclass(frozen=True, eq=False)
class _Patch(Edit):
    """The base class of the edits that the function `patch` returns."""

    what: What = dataclasses.field(kw_only=True)
    source: AttentionRecord | Seen = dataclasses.field(kw_only=True)
    positions: Positions = dataclasses.field(default=None, kw_only=True)
    align: Sequence[int] | None = dataclasses.field(default=None, kw_only=True)

    @property
    def name(self) -> str:
        return "patch"

    @property
    def sets(self) -> str:
        return self.what

    @property
    def of_keys(self) -> bool:
        """Whether `positions` and `align` mean keys (in a patch of k or v), not queries."""
        return self.what in ("k", "v")

    def found(self, at: Where) -> tuple[AttentionRecord, Tensor]:
        """Find the record of the other run for this layer, and match its queries (or keys) with those of this run.

        Returns (the record, for each query or key of this run its index in the record, -1 = it has none there). Raises
        RecordError if there is no such record, ShapeError if the record has another shape.
        """
        record = self.source
        if isinstance(record, Seen):
            found = [each for each in record if each.site is not None and each.site.name == at.site]
            if at.nth is None:
                raise RecordError(
                    f"patch: which run of {at.site} the backward pass runs again is not known. Switch gradient "
                    "checkpointing off"
                )
            if not found:
                raise RecordError(f"patch: the source has no record of {at.site}. It has {listed(record.layers)}")
            if at.nth >= len(found):
                raise RecordError(
                    f"patch: expected a record of each run of {at.site}, of which this pass has at least {at.nth + 1}. "
                    f"Received: a source with {len(found)}"
                )
            record = found[at.nth]
        if at.step:
            raise RecordError(
                f"patch: a step of a generation has other tokens than the source. Received: step {at.step}. Edit the "
                'prompt alone: steps="prompt"'
            )
        if record.shape[1] != at.heads or record.shape[0] not in (1, at.batch):
            raise ShapeError(
                f"patch: {at.site} has B={at.batch}, H={at.heads}. Received: a source with B={record.shape[0]}, "
                f"H={record.shape[1]}"
            )
        ours, theirs = (at.keys if self.of_keys else at.queries).shape[1], record.shape[3 if self.of_keys else 2]
        if self.align is None and theirs != ours:
            what = "keys" if self.of_keys else "queries"
            raise ShapeError(
                f"patch: {at.site} has {ours} {what}. Received: a source with {theirs}. Pass align=: for each of the "
                f"{what} the one of the source, -1 for none"
            )
        used = used_keys(record.call)
        start = 0 if used is None or not record.shape[2] else used.any(1).to(torch.uint8).argmax(-1)
        if (
            self.align is None
            and at.kind == "self"
            and bool(((at.queries >= 0).to(torch.uint8).argmax(-1) != start).any())
        ):
            raise RecordError(
                f"patch: the source has padding at other places than this run at {at.site}. Pad both alike, or pass "
                "align="
            )
        origins = torch.arange(ours, device=at.device)
        if self.align is not None:
            origins = torch.as_tensor(list(self.align), device=at.device)
        if origins.shape != (ours,) or not bool(((origins >= -1) & (origins < theirs)).all()):
            raise ArgumentError(
                f"patch: align must have {ours} numbers, from -1 to {theirs - 1}. Received: align="
                f"{list(self.align or ())[:8]}"
            )
        return record, origins

    def chosen_rows(self, at: Where, origins: Tensor) -> Tensor:
        """Return which rows to patch: bool [B, H, Q], or [B, H, K] for keys; `origins` as `found` returns them."""
        means = select_keys if self.of_keys else select_queries
        rows = means(self.positions, at, "patch") & (origins >= 0)
        return self.cells(at)[:, :, None] & rows[:, None]


class PatchWeights(_Patch):
    """The edit that `patch(what="weights")` returns."""

    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        """Return the weights, in the chosen rows replaced by the weights of the other run."""
        record, origins = self.found(at)
        own = origins[rows].clamp(min=0)
        source = record.used_weights(rows=own.tolist()).to(weights)
        if self.align is not None:
            if at.kind == "cross" or record.shape[2] != record.shape[3] or weights.shape[3] != len(origins):
                raise RecordError(
                    "patch: weights of another length are aligned in self-attention alone, query by query"
                )
            source = torch.where(origins >= 0, source[..., origins.clamp(min=0)], 0.0)
        elif source.shape[3] != weights.shape[3]:
            raise ShapeError(f"patch: {at.site} has {weights.shape[3]} keys. Received: a source with {source.shape[3]}")
        return torch.where(self.chosen_rows(at, origins)[:, :, rows, None], source, weights)


class PatchOutput(_Patch):
    """The edit that `patch(what="output")` returns."""

    def output(self, out: Tensor, at: Where) -> Tensor:
        """Return the output, in the chosen rows replaced by the output of the other run."""
        record, origins = self.found(at)
        v, rows = attended_values(record), origins.clamp(min=0)
        some = max(1, CELLS // math.prod((*record.shape[:2], max(1, record.shape[3]))))
        parts = [by_key_head(record.used_weights(rows=part.tolist()), v) for part in rows.split(some)]
        source = torch.cat(parts, 2)
        return torch.where(self.chosen_rows(at, origins)[..., None], source.to(out), out)


class PatchVectors(_Patch):
    """The edit that `patch` returns for q, k and v."""

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        """Return the call, with its q, k or v at the chosen positions replaced by the vectors of the other run."""
        record, origins = self.found(at)
        moved = self.align is not None and not torch.equal(origins, torch.arange(len(origins), device=origins.device))
        if moved and self.what != "v":
            raise RecordError(
                f"patch: {self.what} of the source may be rotated to its position (RoPE), and cannot be moved. Patch "
                "v, the output or the weights"
            )
        theirs, ours = getattr(record, self.what), getattr(call, self.what)
        if ours.shape[1] % theirs.shape[1] == 0:  # a record stores vectors once that several heads share
            theirs = theirs.repeat_interleave(ours.shape[1] // theirs.shape[1], 1)
        chosen = self.chosen_rows(at, origins)
        if ours.shape[1] < at.heads:  # several heads read one key head, and the edit may select only some of them
            times = at.heads // ours.shape[1]
            per_group = chosen.unflatten(1, (ours.shape[1], times))
            if torch.equal(per_group, per_group[:, :, :1].expand_as(per_group)):
                chosen = per_group[:, :, 0]
            else:
                call = dataclasses.replace(
                    call, k=call.k.repeat_interleave(times, 1), v=call.v.repeat_interleave(times, 1)
                )
                theirs, ours = theirs.repeat_interleave(times, 1), getattr(call, self.what)
        source = theirs[:, :, origins.clamp(min=0)].to(ours)
        if source.shape[1:] != ours.shape[1:]:
            raise ShapeError(
                f"patch: {self.what} of {at.site} is {list(ours.shape)}. Received: a source with {list(source.shape)}"
            )
        changes: dict[str, Any] = {self.what: torch.where(chosen[..., None], source, ours)}
        return dataclasses.replace(call, **changes)


def patch(
    where: Choice,
    source: AttentionRecord | Seen,
    what: What,
    *,
    positions: Positions = None,
    align: Sequence[int] | None = None,
    **chosen: Unpack[Chosen],
) -> Edit:
    """Take the weights, the output, q, k or v of some heads and positions from another run (activation patching).

    Args:
        where, heads, key_heads, examples, steps: as for every edit (`Edit`).
        source: what was recorded of the other run: a record for one layer, or a `Seen` with a record of each call of
            each selected layer. It must have the same number of heads, and the same batch size or one example.
        what: "weights"; "output", before the output projection; or "q", "k" or "v", in the form in which attention uses
            them (after rotary positions). "output" and "v" need a source that was watched with values=True.
        positions: which queries (for q, weights and the output) or keys (for k and v) to patch, as for `block`. None =
            all.
        align: for a source of another length: for each query of this run (for k and v: each key) its index in the
            source, -1 = do not patch. q and k cannot be moved, because they may be rotated to their positions.

    Raises ArgumentError for an unknown `what`; and, while the model runs, RecordError and ShapeError for a source that
    does not fit.
    """
    check_positions(positions, "patch: positions")
    if what not in WHAT:
        raise ArgumentError(f"patch: what must be one of {', '.join(WHAT)}. Received: what={what!r}")
    if not isinstance(source, (AttentionRecord, Seen)):
        raise ArgumentError(f"patch: source must be a record or a Seen. Received: {type(source).__name__}")
    kind = {"weights": PatchWeights, "output": PatchOutput}.get(what, PatchVectors)
    return kind(where, what=what, source=source, positions=positions, align=align, **chosen)
