"""How a worker process calls a model, so that an error in one row does not affect the answers to the other rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.interface import Interface
from headwise.tasks.columns import Row

# A row with more characters than this for each of `max_tokens` is refused before it is tokenized: one word of any
# length is a single token, but takes time in proportion to its characters.
CHARACTERS_PER_TOKEN = 32

Log = Callable[[str, BaseException], None]
Value = TypeVar("Value")


def answer_all(
    model: Interface[Any], rows: Sequence[Row], max_tokens: int | None, log: Log
) -> list[Row | RequestRefused]:
    """Return a list with an answer or an error for each row, in order."""
    read = [_read(model, row, max_tokens, log) for row in rows]
    answers = iter(_answers(model, [each for each in read if not isinstance(each, RequestRefused)], log))
    return [each if isinstance(each, RequestRefused) else next(answers) for each in read]


def ask_model(
    ask: Callable[[Any], Value], model: Interface[Any], row: Row, max_tokens: int | None, log: Log
) -> Value | RequestRefused:
    """Call `ask` (a method of the model) with a row that `model.read` has read. Returns its result, or an error."""
    asked = _read(model, row, max_tokens, log)
    if isinstance(asked, RequestRefused):
        return asked
    try:
        return ask(asked)
    except Exception as error:
        return refuse_row(error, log)


def _read(model: Interface[Any], row: Row, max_tokens: int | None, log: Log) -> Any:
    """Return the row as `Interface.read` gives it, or a RequestRefused if the row is invalid or too long."""
    if max_tokens is not None:
        most = CHARACTERS_PER_TOKEN * max_tokens
        characters = sum(len(cell) for cell in row.values() if isinstance(cell, str))
        if characters > most:
            return RequestRefused("too_large", f"expected at most {most} characters. Received: {characters} characters")
    try:
        asked = model.read(row)
        tokens = 0 if max_tokens is None else model.tokens(asked)
    except Exception as error:
        return refuse_row(error, log)
    if max_tokens is None or tokens <= max_tokens:
        return asked
    return RequestRefused("too_large", f"expected at most {max_tokens} tokens. Received: {tokens} tokens")


def _answers(model: Interface[Any], asked: Sequence[Any], log: Log) -> list[Row | RequestRefused]:
    """Return the model's answers. If it fails on several rows, call it with each half, so that only bad rows fail."""
    if not asked:
        return []
    try:
        answers = model.answer(asked)
        if len(answers) != len(asked):
            raise ValueError(f"{len(answers)} answers to {len(asked)} rows")
        return [refusal(each) if isinstance(each, HeadwiseError) else each for each in answers]
    except Exception as error:
        if len(asked) == 1:
            return [refuse_row(error, log)]
    middle = len(asked) // 2
    return [*_answers(model, asked[:middle], log), *_answers(model, asked[middle:], log)]


def refusal(error: HeadwiseError) -> RequestRefused:
    """Turn an error about an invalid row into a RequestRefused: every HeadwiseError counts as bad input."""
    return error if isinstance(error, RequestRefused) else RequestRefused("bad_input", str(error))


def refuse_row(error: Exception, log: Log) -> RequestRefused:
    """Return the refusal of a row on which the model raised `error`. Logs the error, unless the row was invalid."""
    if isinstance(error, HeadwiseError):
        return refusal(error)
    log("the model failed on a row", error)
    return failure()


def failure() -> RequestRefused:
    """Return the error that a client gets when the model failed unexpectedly."""
    return RequestRefused("failed", "the model failed on this row; see the server's log")
