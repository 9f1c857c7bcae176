"""Call a function on a batch in which one item may make the whole call fail, and find that item by halving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def by_halves(
    run: Callable[[Sequence[Asked]], Sequence[Answer]],
    asked: Sequence[Asked],
    failed: Callable[[Exception], Answer],
) -> list[Answer]:
    """`run(asked)`. If it raises or returns a wrong number of answers, the same for each half, down to single items.

    Args:
        failed: makes the answer for a single item that fails.
    """
    if not asked:
        return []
    try:
        answers = list(run(asked))
        if len(answers) != len(asked):
            raise ValueError(f"{len(answers)} answers to {len(asked)} rows")
        return answers
    except Exception as error:
        if len(asked) == 1:
            return [failed(error)]
    middle = len(asked) // 2
    return [*by_halves(run, asked[:middle], failed), *by_halves(run, asked[middle:], failed)]
