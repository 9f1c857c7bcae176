"""`Answering`: what the interfaces of all tasks have in common: a bad row fails alone, and heads can be looked at."""

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

Asked = TypeVar("Asked")  # what a model is asked by one row

_log = logging.getLogger("headwise.server")


class Answering(ABC, Generic[Asked]):
    """An `Interface`, of which a task says how a row is read, how long it is, and how rows are answered."""

    description: Description
    precision: Precision = "fp32"
    threads = 0  #: of PyTorch; 0 = as many as it takes by itself

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return torch.device("cpu")

    @abstractmethod
    def read(self, row: Row) -> Asked:
        """What the model is asked by a row that has the right columns. Raises HeadwiseError if it cannot be used."""

    @abstractmethod
    def size(self, asked: Asked) -> int:
        """How many tokens it has, also those that are too many to be read."""

    @abstractmethod
    def run(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """What the model makes of each, in one pass. It may raise where one of them cannot be answered."""

    def write(self, asked: Asked) -> Iterator[str]:
        """Pieces of the text that is written."""
        raise ArgumentError(f"{self.description.task} writes no text piece by piece")

    def look(self, asked: Asked) -> list[Input]:
        """What the heads do with it, as the viewer has it."""
        raise ArgumentError(f"{self.description.platform} keeps no records: serve the run with backend torch for that")

    # What a worker calls.

    def tokens(self, row: Row) -> int:
        """As of `Interface`."""
        return self.size(self._asked(row))

    def answer(self, rows: Sequence[Row]) -> list[Row | HeadwiseError]:
        """As of `Interface`."""
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
        """As of `Interface`. A row that cannot be used raises at once, not when the first piece is asked for."""
        return self.write(self._asked(row))

    def explain(self, row: Row) -> dict[str, Any]:
        """As of `Interface`: what `explaining.statistics` says."""
        return explaining.statistics(self.look(self._asked(row)))

    def page(self, row: Row) -> str:
        """As of `Interface`."""
        return explaining.page(self.look(self._asked(row)), title=self.description.task)

    def _asked(self, row: Row) -> Asked:
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)  # of this thread: another one may have opened the model
        check_names(row, self.description.inputs)
        return self.read(row)

    def _run(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        with torch.inference_mode(), computing(self.precision, self.device):
            return self.run(asked)

    def _told(self, error: Exception) -> HeadwiseError:
        if isinstance(error, HeadwiseError):
            return error
        at = traceback.extract_tb(error.__traceback__)[-1]
        # Without its message, in which there may be what a user wrote.
        what = f"{type(error).__name__} at {at.filename}:{at.lineno} {at.name}"
        _log.error("%s: the model failed on a row: %s", self.description.task, what)
        return RequestRefused("failed", "the model failed on this row; the log says where")
