"""Sends generated text as server-sent events.

    data: {"translation": "Zwei "}

    data: {"translation": "Hunde"}

    event: done
    data: {"translation": "Zwei Hunde"}

An error after the first piece is an event as well: `event: error`, with the same JSON as other routes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import StreamingResponse

from headwise.server.routes.refusal import told

TYPE = "text/event-stream"


async def events(pieces: AsyncIterator[str], column: str) -> StreamingResponse:
    """Return a response that streams the pieces of a text as events; `column`: the name of the output with this text.

    If `pieces` raises an error before its first piece, this function raises it, so that the error gets an HTTP status.
    """
    first = [await anext(pieces, "")]
    return StreamingResponse(_events(first, pieces, column), media_type=TYPE, headers={"Cache-Control": "no-store"})


async def _events(first: list[str], pieces: AsyncIterator[str], column: str) -> AsyncIterator[str]:
    async with aclosing(pieces):  # type: ignore[type-var]  # a client that leaves stops what is being written
        try:
            for piece in first:
                yield _event({column: piece})
            async for piece in pieces:
                first.append(piece)
                yield _event({column: piece})
        except Exception as error:  # the status is already sent, so the error must be an event
            yield _event(told(error), "error")
            return
        yield _event({column: "".join(first)}, "done")


def _event(content: dict[str, Any], name: str | None = None) -> str:
    data = f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
    return data if name is None else f"event: {name}\n{data}"
