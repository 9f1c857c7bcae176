"""Which attention of a model was seen and which was not: one line for each place that computes attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rich.console import RenderableType

_STYLES = {"seen": "green", "missed": "yellow", "refused": "red"}


@dataclass(frozen=True)
class CallSite:
    """One place in a model's code that computes attention, or seems to."""

    name: str  # the path of its module
    status: Literal["seen", "missed", "refused"]
    calls: int  # how many computations were made there
    how: str  # what was recognised ("scaled_dot_product_attention"), or why there is no record


@dataclass(frozen=True)
class Coverage:
    """Every call site, in the order of the computation; `notes` say what else there is to know.

    Notes: what the watch changed in how the model ran, what `only=` did not match, fields of a file that were ignored.
    `print` shows a table with a line a site.
    """

    sites: tuple[CallSite, ...] = ()
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[CallSite]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    @property
    def missed(self) -> tuple[CallSite, ...]:
        """The sites that computed attention, or seem to, and were not recognised."""
        return tuple(site for site in self.sites if site.status == "missed")

    @property
    def refused(self) -> tuple[CallSite, ...]:
        """The sites that were recognised but cannot be recorded exactly; `how` says why."""
        return tuple(site for site in self.sites if site.status == "refused")

    def __str__(self) -> str:
        from headwise.records.table import as_text

        return as_text(self)

    def __rich__(self) -> RenderableType:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        notes = [Text(f"note: {note}") for note in self.notes]
        if not self.sites:
            return Group(Text("no place that computes attention was found"), *notes)
        table = Table(box=SIMPLE_HEAD)
        table.add_column("status", no_wrap=True)
        table.add_column("calls", justify="right", no_wrap=True)
        table.add_column("name", overflow="fold")
        table.add_column("how", overflow="fold")
        for site in self.sites:
            status = Text(site.status, style=_STYLES[site.status])
            table.add_row(status, str(site.calls), Text(site.name), Text(site.how))
        return Group(table, *notes)
