"""Many asked at once, of which one may make the whole fail: found by halving, so that the others have their answers."""

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
    """`run(asked)`; where it raises, or gives another number of answers, that of each half, down to single ones.

    Args:
        failed: the answer in the place of one that fails by itself.
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
