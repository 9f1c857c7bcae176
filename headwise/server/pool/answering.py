"""How a worker calls a model: an error in one row does not affect the answers to the other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.halving import by_halves
from headwise.server.interface import Interface, Row

# A row with more characters than this for each of `max_tokens` is refused before it is tokenized: one word of any
# length is a single token, but takes time in proportion to its characters.
CHARACTERS_PER_TOKEN = 32

Log = Callable[[str, BaseException], None]
Value = TypeVar("Value")


def answers_of(model: Interface, rows: Sequence[Row], max_tokens: int | None, log: Log) -> list[Row | RequestRefused]:
    """An answer or an error for each row, in order."""
    refused = [too_long(model, row, max_tokens, log) for row in rows]
    fit = [row for row, error in zip(rows, refused, strict=True) if error is None]
    answers = by_halves(model.answer, fit, lambda error: _failed(error, log))
    told = ((refusal(answer) if isinstance(answer, HeadwiseError) else answer) for answer in answers)
    return [next(told) if error is None else error for error in refused]


def value_of(
    ask: Callable[[Row], Value], model: Interface, row: Row, max_tokens: int | None, log: Log
) -> Value | RequestRefused:
    """The result of `ask` for a row, or an error."""
    refused = too_long(model, row, max_tokens, log)
    if refused is not None:
        return refused
    try:
        return ask(row)
    except Exception as error:
        return _failed(error, log)


def too_long(model: Interface, row: Row, max_tokens: int | None, log: Log) -> RequestRefused | None:
    """The error if a row has too many tokens or is invalid; otherwise None."""
    if max_tokens is None:
        return None
    most = CHARACTERS_PER_TOKEN * max_tokens
    characters = sum(len(cell) for cell in row.values() if isinstance(cell, str))
    if characters > most:
        return RequestRefused("too_large", f"expected at most {most} characters. Received: {characters} characters")
    try:
        tokens = model.tokens(row)
    except HeadwiseError as error:
        return refusal(error)
    except Exception as error:
        log("the tokens of a row could not be counted", error)
        return failure()
    if tokens <= max_tokens:
        return None
    return RequestRefused("too_large", f"expected at most {max_tokens} tokens. Received: {tokens} tokens")


def refusal(error: HeadwiseError) -> RequestRefused:
    """The error for an invalid row: every HeadwiseError counts as one."""
    return error if isinstance(error, RequestRefused) else RequestRefused("bad_input", str(error))


def _failed(error: Exception, log: Log) -> RequestRefused:
    if isinstance(error, HeadwiseError):
        return refusal(error)
    log("the model failed on a row", error)
    return failure()


def failure() -> RequestRefused:
    """The error when the model failed unexpectedly."""
    return RequestRefused("failed", "the model failed on this row; see the server's log")
