"""`Engine`: what a protocol calls. `pool/` implements it with workers; tests of protocols use one without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from headwise.errors import HeadwiseError
from headwise.server.interface import Description
from headwise.tasks.columns import Row


@dataclass(frozen=True)
class Served:
    """A model that is loaded and can be named in a request.

    Args:
        name, version: as in a request; the version is "1" unless the folder has several versions.
        description: its columns and abilities.
        ready: whether at least one worker (a process that runs models) has loaded it.
    """

    name: str
    version: str
    description: Description
    ready: bool


class Engine(Protocol):
    """The interface that protocols call: a server's models, which answer rows. Call all methods in one event loop."""

    @property
    def live(self) -> bool:
        """Return whether the process of the server works."""

    @property
    def ready(self) -> bool:
        """Return whether every model can answer, and the server is not stopping."""

    def models(self) -> list[Served]:
        """Return all loaded models, sorted by name and version."""

    def find(self, name: str, version: str | None = None) -> Served:
        """Find the model with this name; version None = the newest version. Raises RequestRefused "not_found"."""

    async def answer(
        self, name: str, version: str | None, rows: Sequence[Row], *, timeout: float | None = None
    ) -> list[Row | HeadwiseError]:
        """Return the answers to the rows, in order. For an invalid row the list has an error; other rows are answered.

        The rows of one request may be in different batches, together with rows of other requests.

        If the caller is cancelled (its client disconnected), its rows are removed from the queue.

        Raises:
            RequestRefused: the whole request is refused: "not_found", "busy", "too_large", "timeout", "unavailable";
                "bad_input": a row is not a dict.
        """

    def stream(self, name: str, version: str | None, row: Row, *, timeout: float | None = None) -> AsyncIterator[str]:
        """Yield the text generated for a row, in pieces. Raises like `answer`, before or after the first piece."""

    async def explain(
        self,
        name: str,
        version: str | None,
        row: Row,
        *,
        page: bool = False,
        rows: Sequence[int] | None = None,
        timeout: float | None = None,
    ) -> dict[str, Any] | str:
        """Return the attention statistics of a row as a JSON object, the page as HTML (`page`), or with `rows` the
        answer together with the attention weights of these queries.

        See `Interface.attend` for `rows`. Raises like `answer`.
        """

    async def load(self, name: str, path: Path | None = None) -> None:
        """Load or reload a model. The old model answers until the new one is ready. path None = the previous path.

        Raises:
            RequestRefused: "not_found": no path and no model with this name; "bad_input": the model cannot be loaded,
                with the reason.
        """

    async def unload(self, name: str) -> None:
        """Unload a model after its accepted requests are answered. Raises RequestRefused "not_found"."""
