"""`Entry`: a record that `watch` keeps, while rows may still be added to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import Tensor

from headwise.capture.sequence import Sequence as Generation
from headwise.records import AttentionRecord, Site
from headwise.records.computed import ComputedRecord


@dataclasses.dataclass(eq=False)
class Entry:
    """A record of an attention call, or of the steps of a generation, to which rows may still be added."""

    site: Site
    kept: Generation
    values: bool
    whole: bool  # whether queries and keys are kept, and not only statistics
    names: dict[str, Sequence[str] | None]  # the names of the rows and the columns, if the module has them
    run: int | None = None  # the call of `generate` that made its last step
    recomputed: bool = False  # whether it replaced the pass before, whose rows it computed again
    extras: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    built: AttentionRecord | None = None

    def record(self) -> AttentionRecord:
        """Return the record of all rows that were added so far."""
        if self.built is None:
            call, computed = self.kept.call(), self.kept.computed()
            if self.whole:
                self.built = AttentionRecord(call, values=self.values, site=self.site, computed=computed)
            else:
                self.built = ComputedRecord(call.shape, computed, site=self.site, share=call.share)
            for side, count in zip(("row_names", "col_names"), call.shape[2:], strict=True):
                if len(self.names.get(side) or ()) == count:  # false if there are rows of several steps
                    setattr(self.built, side, self.names[side])
            for name, x in self.extras.items():
                setattr(self.built.extras, name, x)
        return self.built

    def keep(self, name: str, x: Tensor) -> None:
        """Add a tensor that becomes known after the call: the gradient, or the output projection."""
        self.extras[name] = x
        setattr(self.record().extras, name, x)


@dataclasses.dataclass(eq=False)
class State:
    """The state of one call site (a place in a model that computes attention): its name and its current record."""

    name: str
    layer: int
    named: bool = False  # whether it is one of the layers that `only` numbers
    how: str = ""
    generation: Entry | None = None  # the record that the next step may continue
    waiting: list[tuple[Entry, Tensor]] = dataclasses.field(default_factory=list)  # (entry without a gradient, its q)


Reserved = tuple[State, int]  # the call site of a future record, and the number of the run of its module
