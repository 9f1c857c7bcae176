"""`Engine`: what a protocol asks. `pool/` has the one that runs workers; tests of protocols have one in the process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError
from headwise.server.interface import Description, Row


@dataclass(frozen=True)
class Served:
    """A model that can be asked.

    Args:
        name, version: as a client gives them; "1" unless the folder is one of several versions.
        description: of its rows.
        ready: whether a worker has it loaded.
    """

    name: str
    version: str
    description: Description
    ready: bool


class Engine(Protocol):
    """Models that answer rows. All methods belong to one event loop."""

    @property
    def live(self) -> bool:
        """Whether the process works."""

    @property
    def ready(self) -> bool:
        """Whether every model can answer, and the server is not stopping."""

    def models(self) -> list[Served]:
        """All that is loaded, by name and version."""

    def find(self, name: str, version: str | None = None) -> Served:
        """The model of this name; without a version the newest. Raises RequestRefused "not_found"."""

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        """The answers to the rows, in order; a row that cannot be used has an error in its place, and the others are
        answered. Rows of one request may stand in different batches, beside those of others.

        A caller that is cancelled (its client is gone) takes its rows out of the queue.

        Raises:
            RequestRefused: "not_found"; "busy", "too_large", "timeout", "unavailable", as of the whole request.
        """

    def stream(self, name: str, version: str | None, row: Row, *, timeout: float | None = None) -> AsyncIterator[str]:
        """The text that is written for a row, piece by piece. Raises as `answer`, before the first piece or between."""

    async def explain(
        self, name: str, version: str | None, row: Row, *, page: bool = False, timeout: float | None = None
    ) -> dict[str, Any] | str:
        """Statistics as JSON has them, or the page as HTML. Raises as `answer`."""

    async def load(self, name: str, path: Path | None = None) -> None:
        """Load a model, or load it anew; the old one answers until the new one can. Without a path: from where it was.

        Raises:
            RequestRefused: "not_found", no path and no such name; "bad_input", it cannot be loaded, and why.
        """

    async def unload(self, name: str) -> None:
        """Let go of a model, after the requests that it has accepted. Raises RequestRefused "not_found"."""
