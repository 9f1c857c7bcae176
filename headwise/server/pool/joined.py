"""`Joined`: the rows that one worker answers by continuous batching: each row joins and leaves at any step."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headwise.errors import RequestRefused
from headwise.server.interface import Interface, Running
from headwise.server.pool.answering import Log, ask_model, refuse_row
from headwise.tasks.columns import Row

Give = Callable[[int, float, "Row | RequestRefused"], None]


class Joined:
    """The rows that a worker answers at the same time, step by step, for all its models.

    Args:
        most: the largest number of rows of a model at a time.
        max_tokens: the largest number of tokens of a row; None = no limit.
        give: called with the number of a row, the seconds since it joined, and its answer or its error.
        log: called with an error, for the log.
    """

    def __init__(self, most: int, max_tokens: int | None, give: Give, log: Log) -> None:
        self._most, self._max_tokens, self._give, self._log = most, max_tokens, give, log
        self._models: dict[int, tuple[Interface[Any], Running]] = {}
        self._rows: dict[int, tuple[int, int, float]] = {}  # number: key of the model, ticket, when it joined
        self._numbers: dict[tuple[int, int], int] = {}  # (key of the model, ticket): number

    def __len__(self) -> int:
        """Return the number of rows that have no answer yet."""
        return len(self._rows)

    def add(self, number: int, key: int, model: Interface[Any], row: Row) -> None:
        """Add a row for the model with this key."""
        begun = time.perf_counter()
        ticket = ask_model(lambda asked: self._running(key, model).add(asked), model, row, self._max_tokens, self._log)
        if isinstance(ticket, RequestRefused):
            self._give(number, time.perf_counter() - begun, ticket)
        else:
            self._rows[number] = key, ticket, begun
            self._numbers[key, ticket] = number

    def _running(self, key: int, model: Interface[Any]) -> Running:
        if key not in self._models:
            self._models[key] = model, model.running(self._most)
        return self._models[key][1]

    def cancel(self, number: int) -> bool:
        """Stop answering a row whose client is gone: it ends with an error. Returns False if there is no such row."""
        if number not in self._rows:
            return False
        key, ticket, _ = self._rows[number]
        self._models[key][1].cancel(ticket)
        self._end(number, RequestRefused("failed", "the request was cancelled"))
        return True

    def step(self) -> None:
        """Advance every row by one step, and pass on the answers of the rows that are finished."""
        for key, (_, running) in list(self._models.items()):
            for ticket, found in running.step():
                answer = refuse_row(found, self._log) if isinstance(found, Exception) else found
                self._end(self._numbers[key, ticket], answer)
            if not len(running):
                del self._models[key]  # the model may be unloaded

    def _end(self, number: int, answer: Row | RequestRefused) -> None:
        key, ticket, begun = self._rows.pop(number)
        del self._numbers[key, ticket]
        self._give(number, time.perf_counter() - begun, answer)
