"""`Answering`: the base class of the interfaces of all models: it handles threads, precision, and explanations."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Generic

import torch

from headwise.errors import ArgumentError, HeadwiseError
from headwise.functional import listening
from headwise.server.interface import Asked, Description, Running
from headwise.server.interfaces import explaining
from headwise.server.interfaces.precision import Precision, computing
from headwise.tasks.columns import Row, check_names
from headwise.viewer import Input


class Answering(ABC, Generic[Asked]):
    """An `Interface` that calls `parse` and `run` of its subclass: these define how a row is read and answered."""

    description: Description
    precision: Precision = "fp32"
    threads = 0  #: threads of PyTorch for the next call; 0 = PyTorch's default. ONNX Runtime's are set when it opens

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return torch.device("cpu")

    @abstractmethod
    def parse(self, row: Row) -> Asked:
        """Check and tokenize a row whose columns are valid: the part of `read` that depends on the task."""

    @abstractmethod
    def tokens(self, asked: Asked) -> int:
        """Return the number of tokens of a row, see `Interface`."""

    @abstractmethod
    def run(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """Answer some rows; `answer` calls this method in the precision of the model."""

    def look(self, asked: Asked) -> list[Input]:
        """Return the attention of all heads for one row, in the form that the viewer's page takes."""
        raise ArgumentError(
            f"{self.description.platform} cannot record attention. Serve the run folder with backend torch"
        )

    def names(self, asked: Asked) -> list[str]:
        """Return the names of a row's tokens. Raises ArgumentError if the answer is not one pass over these tokens."""
        raise ArgumentError(
            f"{self.description.task}: its answer is not one pass over the tokens of the row, of which rows could be "
            "shown. Ask without rows for statistics, or for the page"
        )

    # Called by a worker.

    def read(self, row: Row) -> Asked:
        """Check and tokenize a row, see `Interface.read`."""
        self.use_threads()
        check_names(row, self.description.inputs)
        return self.parse(row)

    def use_threads(self) -> None:
        """Set the number of threads with which PyTorch computes to `threads`.

        PyTorch keeps this number separately for each calling thread, and another thread may have opened the model.
        """
        if self.threads and torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    def answer(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """Answer some rows, see `Interface.answer`."""
        with torch.inference_mode(), computing(self.precision, self.device):
            return self.run(asked)

    def running(self, most: int) -> Running:
        """Raise ArgumentError: by default a model answers rows in batches. See `Interface.running`."""
        raise ArgumentError(f"{self.description.task} answers its rows in batches")

    def stream(self, asked: Asked) -> Iterator[str]:
        """Raise ArgumentError: by default a model does not generate text. See `Interface.stream`."""
        raise ArgumentError(f"{self.description.task} does not generate text piece by piece")

    def explain(self, asked: Asked) -> dict[str, Any]:
        """Return the statistics of the attention for a row, made by `explaining.statistics`; see `Interface`."""
        return explaining.statistics(self.look(asked))

    def attend(self, asked: Asked, places: Sequence[int]) -> dict[str, Any]:
        """Return the answer to a row with its attention weights, see `Interface.attend`."""
        names, calls = self.names(asked), []
        with listening(lambda call, *_: calls.append(call), outputs=False):
            (answered,) = self.answer([asked])
        if isinstance(answered, HeadwiseError):
            raise answered
        found = explaining.compute_weights(calls, names, places)
        return {"answer": answered, "tokens": names, **found}

    def page(self, asked: Asked) -> str:
        """Return the page that shows the attention for a row, see `Interface.page`."""
        return explaining.page(self.look(asked), title=self.description.task)
