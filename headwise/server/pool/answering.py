"""How a worker asks a model: whatever a row does to it, the rows beside it get their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from headwise.errors import HeadwiseError, RequestRefused
from headwise.server.interface import Interface, Row

Log = Callable[[str, BaseException], None]
Value = TypeVar("Value")


def answers_of(model: Interface, rows: Sequence[Row], max_tokens: int | None, log: Log) -> list[Row | RequestRefused]:
    """An answer, or what is wrong, for each row, in order."""
    refused = [too_long(model, row, max_tokens, log) for row in rows]
    fit = [row for row, error in zip(rows, refused, strict=True) if error is None]
    answers = iter(_answers(model, fit, log))
    return [next(answers) if error is None else error for error in refused]


def value_of(
    ask: Callable[[Row], Value], model: Interface, row: Row, max_tokens: int | None, log: Log
) -> Value | RequestRefused:
    """What `ask` gives for a row, or what is wrong."""
    refused = too_long(model, row, max_tokens, log)
    if refused is not None:
        return refused
    try:
        return ask(row)
    except HeadwiseError as error:
        return refusal(error)
    except Exception as error:
        log("the model failed on a row", error)
        return failure()


def too_long(model: Interface, row: Row, max_tokens: int | None, log: Log) -> RequestRefused | None:
    """Why the row is not let in, if it is not."""
    if max_tokens is None:
        return None
    try:
        tokens = model.tokens(row)
    except HeadwiseError as error:
        return refusal(error)
    except Exception as error:
        log("the tokens of a row could not be counted", error)
        return failure()
    if tokens <= max_tokens:
        return None
    return RequestRefused("too_large", f"expected at most {max_tokens} tokens. Received: {tokens}")


def refusal(error: HeadwiseError) -> RequestRefused:
    """The row's fault, as every error is that headwise raises on purpose."""
    return error if isinstance(error, RequestRefused) else RequestRefused("bad_input", str(error))


def failure() -> RequestRefused:
    """Not the row's fault, as far as anyone knows."""
    return RequestRefused("failed", "the model failed on this row; the server's log says where")


def _answers(model: Interface, rows: Sequence[Row], log: Log) -> list[Row | RequestRefused]:
    """`model.answer`; where that raises, each half of the rows alone, down to the one that is to blame."""
    if not rows:
        return []
    try:
        answers = list(model.answer(rows))
        if len(answers) != len(rows):
            raise ValueError(f"{len(answers)} answers to {len(rows)} rows")
        return [refusal(answer) if isinstance(answer, HeadwiseError) else answer for answer in answers]
    except Exception as error:
        if len(rows) == 1:
            if isinstance(error, HeadwiseError):
                return [refusal(error)]
            log("the model failed on a row", error)
            return [failure()]
    half = len(rows) // 2
    return [*_answers(model, rows[:half], log), *_answers(model, rows[half:], log)]
