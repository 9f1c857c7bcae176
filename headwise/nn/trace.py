"""How a stack of modules returns what all its attention saw: each layer's records, under their paths."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from torch import Tensor, nn

from headwise.records import AttentionRecord, Seen, Site
from headwise.records.names import UNNAMED, stack_of
from headwise.records.seen import name_of


class Trace:
    """Calls the parts of a module; with `record`, collects the records they return.

    trace = Trace(record)
    x = trace(self.attention, "attention", x, mask=mask)
    return trace.result(x)
    """

    def __init__(self, record: bool) -> None:
        self._record = record
        self._records: list[AttentionRecord] = []

    def __call__(self, part: nn.Module, path: str, *args: Any, **kwargs: Any) -> Tensor:
        """The output of `part`, which stands at `path` under the module that owns this trace."""
        if not self._record:
            return part(*args, **kwargs)
        out, found = part(*args, record=True, **kwargs)
        if isinstance(found, AttentionRecord):  # a module that knows what its queries or keys stand for says so
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
        """`out`, or (out, Seen) with the layers numbered in their order."""
        return (out, Seen(_numbered(self._records))) if self._record else out


def placed(record: AttentionRecord, kind: Literal["self", "cross"]) -> AttentionRecord:
    """A record of a module's own attention, which says what kind it is."""
    _, heads, q_len, k_len = record.shape
    causal = kind == "self" and record.mask is not None and bool(record.mask.causal_rows(q_len, k_len).all())
    record.site = Site(UNNAMED, 0, kind, causal, heads, record.k.shape[1])
    return record


def _numbered(records: Sequence[AttentionRecord]) -> list[AttentionRecord]:
    """With each record's layer: its place among those whose paths differ in numbers alone."""
    stacks: dict[str, int] = {}
    for record in records:
        assert record.site is not None
        stack = stack_of(record.site.name)
        record.site = dataclasses.replace(record.site, layer=stacks.setdefault(stack, 0))
        stacks[stack] += 1
    return list(records)
