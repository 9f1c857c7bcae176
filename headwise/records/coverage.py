"""The coverage of a model: which attention was seen and which was not. It has one entry for each place in the code."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from headwise.language import said
from headwise.tables import Heading, Table

_STYLES = {"seen": "green", "missed": "yellow", "refused": "red", "not attention": "dim"}


Status = Literal["seen", "missed", "refused", "not attention"]


@dataclass(frozen=True)
class CallSite:
    """One place in a model's code where a softmax is multiplied with something, as in attention.

    `status` says what became of it. `seen`: there is a record. `refused`: the attention was recognised, but cannot be
    recorded exactly. `missed`: the computation was not understood, or happens where nothing can be seen. `not
    attention`: a gate, a router, a pooling or a convolution.
    """

    name: str  # the path of its module
    status: Status
    calls: int  # the number of computations at this place
    how: str  # what was recognised ("scaled_dot_product_attention"), or why there is no record
    where: str = dataclasses.field(default="", metadata={"since": 3})  # the file and the line, if there is no record


@dataclass(frozen=True, repr=False)
class Coverage:
    """The call sites (places that compute attention) of a model, in the order of computation, and `notes` in words.

    The notes say how `headwise.watch` changed the run of the model, which entries of `only=` matched no layer, and
    which fields of a file were ignored. `print` shows a table with one line for each call site.
    """

    sites: tuple[CallSite, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[CallSite]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    @property
    def missed(self) -> tuple[CallSite, ...]:
        """The call sites that computed attention, or seem to have done so, but were not understood."""
        return tuple(site for site in self.sites if site.status == "missed")

    @property
    def refused(self) -> tuple[CallSite, ...]:
        """The call sites that were recognised but cannot be recorded exactly; `how` says why."""
        return tuple(site for site in self.sites if site.status == "refused")

    def __repr__(self) -> str:
        counts = Counter(site.status for site in self.sites)
        said = ", ".join(f"{count} {status}" for status, count in counts.items()) or "no sites"
        notes = f", {len(self.notes)} note{'s' * (len(self.notes) > 1)}" if self.notes else ""
        return f"Coverage({said}{notes}; print it for the table)"

    def _repr_html_(self) -> str:
        return self.__rich__()._repr_html_()

    def __str__(self) -> str:
        return str(self.__rich__())

    def __rich__(self) -> Table:
        rows = [
            # The status is printed in colour.
            (
                [(said(site.status), _STYLES[site.status])],
                str(site.calls),
                site.name,
                f"{said(site.how)} ({site.where})" if site.where else said(site.how),
            )
            for site in self.sites
        ]
        notes = [said("note: {note}", note=note) for note in self.notes]
        if not rows:
            return Table((), (), notes=[said("no place that computes attention was found"), *notes])
        headings = [Heading("status"), Heading("calls"), Heading("name", "left"), Heading("how", "left")]
        return Table(headings, [rows], notes=notes)
