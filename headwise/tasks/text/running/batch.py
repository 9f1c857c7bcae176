"""`RunningBatch`: continuous batching of texts that are generated. A text joins or leaves the batch at any step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection
from typing import Any, Generic, TypeVar

import torch

from headwise.tasks.text.searches import Asked
from headwise.tasks.text.steps import Written
from headwise.tasks.text.writing import Writing

MEMORY_TOKENS = 16384  # most tokens in a batch, if each text were as long as the longest

Answer = TypeVar("Answer")


class RunningBatch(Generic[Answer]):
    """Generates several texts at the same time, each with the same result as `predict` for this text alone.

    >>> batch = task.running(32)
    >>> ticket = batch.add(task.read_row({"text": "Two dogs play."}))
    >>> while len(batch):
    ...     for ticket, answer in batch.step():
    ...         print(ticket, answer)

    Continuous batching (Yu et al. 2022, Orca, section 3.2): a text that is added waits only for the next step, and a
    text that ends makes room at once. One pass of the model per step computes all texts. No text changes the result of
    another one, beyond the rounding of float32 in matrix products of other sizes.

    Args:
        begin: makes an empty `Writing` of a model that texts can join at any step.
        read: turns the argument of `add` into the text to write.
        answer: makes the answer from the argument of `add` and the written text.
        most: the largest number of texts at a time; others wait.
    """

    def __init__(
        self,
        begin: Callable[[], Writing],
        read: Callable[[Any], Asked],
        answer: Callable[[Any, Written], Answer],
        most: int,
    ) -> None:
        self._make, self._read, self._answer, self._most = begin, read, answer, most
        self._waiting: OrderedDict[int, tuple[Any, Asked]] = OrderedDict()
        self._given = 0
        self._reset()

    def _reset(self) -> None:
        self._writing = self._make()
        self._texts: list[tuple[int, Any, Asked]] = []

    def __len__(self) -> int:
        """Return the number of texts that have no answer yet."""
        return len(self._waiting) + len(self._texts)

    def add(self, asked: Any) -> int:
        """Add one more text, which is generated from the next step on.

        Args:
            asked: the result of `Task.read_row`.

        Returns:
            A ticket (a number), with which `step` will return the answer.
        """
        self._given += 1
        self._waiting[self._given] = asked, self._read(asked)
        return self._given

    @torch.inference_mode()
    def cancel(self, ticket: int) -> None:
        """Forget a text: `step` will not return its ticket. An unknown ticket is ignored."""
        self._waiting.pop(ticket, None)
        if any(ticket == each for each, *_ in self._texts):
            self._leave([i for i, (each, *_) in enumerate(self._texts) if each == ticket])

    @torch.inference_mode()
    def step(self) -> list[tuple[int, Answer | Exception]]:
        """Let waiting texts join, and generate one more token in each text.

        Returns:
            (ticket, answer or error) of each text that has ended. An error that belongs to no single text ends all
            texts in the batch; waiting texts are not affected.
        """
        done = self._join()
        if not self._texts:
            return done
        try:
            found = self._writing.step()
            ended = [(self._texts[i], each) for i, each in found.items()]
            self._leave(found)
        except Exception as error:
            done += [(ticket, error) for ticket, *_ in self._texts]
            self._reset()
            return done
        return [*done, *((ticket, self._answered(given, each)) for (ticket, given, _), each in ended)]

    def _answered(self, given: Any, found: Written | Exception) -> Answer | Exception:
        try:
            return found if isinstance(found, Exception) else self._answer(given, found)
        except Exception as error:
            return error

    def _join(self) -> list[tuple[int, Answer | Exception]]:
        """Let as many waiting texts join as there is room for. Returns (ticket, error) of texts that cannot be read."""
        longest = max((len(asked.source) for *_, asked in self._texts), default=0)
        new: list[tuple[int, Any, Asked]] = []
        while self._waiting and len(self._texts) + len(new) < self._most:
            ticket, (given, asked) = next(iter(self._waiting.items()))
            longest = max(longest, len(asked.source))
            count = len(self._texts) + len(new) + 1
            if count > 1 and count * longest > MEMORY_TOKENS:
                break
            del self._waiting[ticket]
            new.append((ticket, given, asked))
        return self._begin(new)

    def _begin(self, new: list[tuple[int, Any, Asked]]) -> list[tuple[int, Answer | Exception]]:
        if not new:
            return []
        try:
            self._writing.join([asked for *_, asked in new])
        except Exception as error:
            if len(new) == 1:
                return [(new[0][0], error)]
            return [each for one in new for each in self._begin([one])]  # only the text that cannot be read fails
        self._texts += new
        return []

    def _leave(self, leaving: Collection[int]) -> None:
        self._texts = [self._texts[i] for i in self._writing.leave(leaving)]
