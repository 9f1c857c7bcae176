"""Collects attention records: a module returns its own record, a stack the records of all its layers by path."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

from torch import Tensor, nn

from headwise.functional import attention
from headwise.parallel import context as parallel
from headwise.quantized import Int8
from headwise.records import AttentionRecord, Seen, Site
from headwise.records.names import UNNAMED, name_of, name_stack
from headwise.records.site import is_causal


class Trace:
    """Calls the submodules of a module; with `record`, collects the records that they return.

    trace = Trace(record)
    x = trace(self.attention, "attention", x, mask=mask)
    return trace.result(x)
    """

    def __init__(self, record: bool) -> None:
        self._record = record
        self._records: list[AttentionRecord] = []

    def __call__(self, part: nn.Module, path: str, *args: Any, **kwargs: Any) -> Tensor:
        """Call the submodule `part`, whose path in the module that owns this trace is `path`, and return its output."""
        if not self._record:
            return part(*args, **kwargs)
        out, found = part(*args, record=True, **kwargs)
        if isinstance(found, AttentionRecord):  # the attention module may have names for its queries or keys
            found.row_names, found.col_names = getattr(part, "row_names", None), getattr(part, "col_names", None)
            self._keep(found, path)
        else:
            for record in found:
                self._keep(record, f"{path}.{name_of(record)}")
        return out

    def _keep(self, record: AttentionRecord, name: str) -> None:
        assert record.site is not None
        record.site = dataclasses.replace(record.site, name=name)
        self._records.append(record)

    def result(self, out: Tensor) -> Any:
        """Return `out`, or with `record` (out, Seen), whose layers are numbered in the order of their calls."""
        return (out, Seen(_numbered(self._records))) if self._record else out


def attend(
    kind: Literal["self", "cross"], q: Tensor, k: Tensor | Int8, v: Tensor | Int8, *, record: bool, **given: Any
) -> tuple[Tensor, AttentionRecord | None]:
    """Compute attention for a module: return the output [B, H, Q, E], and the record, which says its kind, or None."""
    with nullcontext() if parallel.current() is None else parallel.reading_memory(kind == "cross"):
        found: Any = attention(q, k, v, **given, record=record)  # type: ignore[call-overload]
    if not record:
        return found, None
    out, found = found
    causal = kind == "self" and is_causal(*found.call.whole)
    found.site = Site(UNNAMED, 0, kind, causal, found.shape[1], found.k.shape[1])
    return out, found


def _numbered(records: Sequence[AttentionRecord]) -> list[AttentionRecord]:
    """Set `layer` of each record: its number, from 0, among the records whose paths differ only in numbers."""
    stacks: dict[str, int] = {}
    for record in records:
        assert record.site is not None
        stack = name_stack(record.site.name)
        record.site = dataclasses.replace(record.site, layer=stacks.setdefault(stack, 0))
        stacks[stack] += 1
    return list(records)
