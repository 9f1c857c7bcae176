"""`Answering`: the common part of the interfaces of all tasks: error handling per row, and explanations."""

from __future__ import annotations

import logging
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic, TypeVar

import torch

from headwise.errors import ArgumentError, HeadwiseError, RequestRefused
from headwise.server.halving import by_halves
from headwise.server.interface import Description, Row
from headwise.server.interfaces import explaining
from headwise.server.interfaces.cells import check_names
from headwise.server.interfaces.precision import Precision, computing
from headwise.viewer import Input

Asked = TypeVar("Asked")  # one row in the form that the model reads

_log = logging.getLogger("headwise.server")


class Answering(ABC, Generic[Asked]):
    """An `Interface` whose subclasses define how a row is read, how long it is, and how rows are answered."""

    description: Description
    precision: Precision = "fp32"
    threads = 0  #: threads of PyTorch; 0 = PyTorch's default

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return torch.device("cpu")

    @abstractmethod
    def read(self, row: Row) -> Asked:
        """A row with valid columns in the form that the model reads. Raises HeadwiseError if it is invalid."""

    @abstractmethod
    def size(self, asked: Asked) -> int:
        """The number of tokens, including those beyond the model's limit."""

    @abstractmethod
    def run(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """The answers to all items in one pass. May raise if one of them cannot be answered."""

    def write(self, asked: Asked) -> Iterator[str]:
        """The pieces of the generated text."""
        raise ArgumentError(f"{self.description.task} does not generate text piece by piece")

    def look(self, asked: Asked) -> list[Input]:
        """The attention of all heads, as inputs of the viewer."""
        raise ArgumentError(
            f"{self.description.platform} cannot record attention. Serve the run folder with backend torch"
        )

    # Called by a worker.

    def tokens(self, row: Row) -> int:
        """See `Interface`."""
        return self.size(self._asked(row))

    def answer(self, rows: Sequence[Row]) -> list[Row | HeadwiseError]:
        """See `Interface`."""
        found: dict[int, Row | HeadwiseError] = {}
        asked: dict[int, Asked] = {}
        for place, row in enumerate(rows):
            try:
                asked[place] = self._asked(row)
            except Exception as error:  # noqa: PERF203 (each by itself)
                found[place] = self._told(error)
        found.update(zip(asked, by_halves(self._run, list(asked.values()), self._told), strict=True))
        return [found[place] for place in range(len(rows))]

    def stream(self, row: Row) -> Iterator[str]:
        """See `Interface`. An invalid row raises at once, not when the first piece is requested."""
        return self.write(self._asked(row))

    def explain(self, row: Row) -> dict[str, Any]:
        """See `Interface`; the result is that of `explaining.statistics`."""
        return explaining.statistics(self.look(self._asked(row)))

    def page(self, row: Row) -> str:
        """See `Interface`."""
        return explaining.page(self.look(self._asked(row)), title=self.description.task)

    def _asked(self, row: Row) -> Asked:
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)  # a setting of this thread: another thread may have opened the model
        check_names(row, self.description.inputs)
        return self.read(row)

    def _run(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        with torch.inference_mode(), computing(self.precision, self.device):
            return self.run(asked)

    def _told(self, error: Exception) -> HeadwiseError:
        if isinstance(error, HeadwiseError):
            return error
        at = traceback.extract_tb(error.__traceback__)[-1]
        # Without the message, which may quote text of a user.
        what = f"{type(error).__name__} at {at.filename}:{at.lineno} {at.name}"
        _log.error("%s: the model failed on a row: %s", self.description.task, what)
        return RequestRefused("failed", "the model failed on this row; see the server's log")
