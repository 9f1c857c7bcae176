"""HTTP connections: closes a connection if the header of a request does not arrive, or does not end, in time."""

from __future__ import annotations

import asyncio
from typing import Any

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 * 2**10


def protocol() -> type[asyncio.Protocol]:
    """Return the class of uvicorn's HTTP connections (of httptools if installed), with a time limit for headers."""
    base: Any
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

        base = HttpToolsProtocol
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol

        base = H11Protocol

    class Connection(base):
        _clock: asyncio.TimerHandle | None = None
        _head = 0  # bytes since the last request

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._wait()

        def data_received(self, data: bytes) -> None:
            before = self.cycle
            super().data_received(data)
            if self.cycle is not before:  # a header is complete
                self._rest()
            elif self.cycle is None or self.cycle.response_complete:
                self._head += len(data)
                if self._head > HEAD_BYTES:
                    self.transport.abort()
                elif self._clock is None:
                    self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            self._rest()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._clock = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.abort)

        def _rest(self) -> None:
            self._head = 0
            if self._clock is not None:
                self._clock.cancel()
                self._clock = None

    return Connection
