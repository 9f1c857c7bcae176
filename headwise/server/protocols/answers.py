"""Answers a request that succeeds or fails as a whole."""

from __future__ import annotations

from collections.abc import Sequence

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.engine import Engine, Served
from headwise.server.protocols.errors import refusal
from headwise.tasks.columns import Row


async def answers(engine: Engine, served: Served, rows: Sequence[Row], *, timeout: float | None = None) -> list[Row]:
    """Return the answers to all rows. For protocols without errors per row: one invalid row fails the whole request.

    Raises:
        RequestRefused: the request is refused, or its first invalid row; the message has the number of the row.
    """
    found = await engine.answer(served.name, served.version, rows, timeout=timeout)
    good: list[Row] = []
    for number, answer in enumerate(found):
        if isinstance(answer, HeadwiseError):
            raise _name_row(refusal(answer), number, len(found)) from answer
        good.append(answer)
    return good


def _name_row(refused: RequestRefused, number: int, rows: int) -> RequestRefused:
    if rows == 1:
        return refused
    message = f"row {number} (from 0) of {rows}: {refused}"
    return RequestRefused(refused.kind, message, retry_after=refused.retry_after)
