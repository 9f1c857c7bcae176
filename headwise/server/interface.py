"""`Interface`: the inputs and outputs of a served model as rows of named columns, for every task and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Row

Asked = TypeVar("Asked")  # a row in the form that the model reads


@dataclass(frozen=True, kw_only=True)
class Description(Columns):
    """What a protocol needs to know about a model: its columns, and

    Args:
        task: "classify", "answer", …; "tensors" for an export that belongs to no task.
        platform: what runs the model: "headwise_torch" or "headwise_onnx".
        labels: of a classifier, in the order of "probabilities".
        explains: whether `explain` and `page` are supported.

    The worker sends it to the network process.
    """

    task: str
    platform: str
    labels: tuple[str, ...] = ()
    explains: bool = False

    @property
    def written(self) -> str:
        """The column that `stream` returns in pieces: the text of an answer."""
        return next(column.name for column in self.outputs if column.datatype == "BYTES")


class Interface(Protocol[Asked]):
    """A model in a worker. It is called by one thread at a time. A row is read once, for whatever is asked of it."""

    description: Description
    threads: int  #: of the next call, set by the worker; 0 = as many as the library takes

    def read(self, row: Row) -> Asked:
        """A row, checked and tokenized, as the other methods take it. Raises HeadwiseError if it is invalid."""

    def tokens(self, asked: Asked) -> int:
        """The number of tokens, including those beyond the model's limit, for the limit `max_tokens`."""

    def answer(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """The answers to some rows in one pass, in order. May raise if one of them cannot be answered."""

    def stream(self, asked: Asked) -> Iterator[str]:
        """The pieces of the generated text, each as soon as it is ready; joined they are the whole text."""

    def explain(self, asked: Asked) -> dict[str, Any]:
        """The statistics of every attention call of this row, as a JSON object."""

    def attend(self, asked: Asked, places: Sequence[int]) -> dict[str, Any]:
        """The answer to a row with the attention weights that led to it.

        Args:
            places: the queries whose weights are asked for, by their tokens; negative ones count from the end.

        Returns:
            "answer": a row; "tokens": their names; "rows": the places, from 0; "layers": float32 arrays [H, rows, K].

        Raises:
            HeadwiseError: a place is out of range, or the model's answer is not one pass over the tokens of the row.
        """

    def page(self, asked: Asked) -> str:
        """The HTML page that shows the attention."""
