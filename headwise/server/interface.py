"""`Interface`: a served model that takes and returns rows of named columns, for every task and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from headwise.errors import HeadwiseError
from headwise.tasks.columns import Columns, Row

Asked = TypeVar("Asked")  # a row in the form that the model reads


@dataclass(frozen=True)
class Embeds:
    """The properties of a model that turns texts into vectors.

    Such a model also answers rows with other names than its columns: {"text": a text, or "ids": int64 [S];
    "prompt_name": … or None; "truncate": whether a text with too many tokens is cut, instead of refused}, by
    {"embedding": float32 [dim], "tokens": the number of tokens that were read}.

    Args:
        dim: the number of elements of a vector.
        max_tokens: the largest number of tokens of a text that are read.
        prompts: names of prompts that can be put before a text.
    """

    dim: int
    max_tokens: int
    prompts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Description(Columns):
    """The properties of a model that a protocol needs: its columns, and

    Args:
        task: "classify", "answer", …; "tensors" for an export that belongs to no task.
        platform: what runs the model: "headwise_torch" or "headwise_onnx".
        labels: the labels of a classifier, in the order of "probabilities".
        explains: whether `explain` and `page` are supported.
        embeds: the properties of the vectors that the model makes of texts; None = it makes no vectors.
        packs: whether rows of different lengths share a batch without padding.
        joins: whether rows are answered side by side in `Interface.running`, instead of in batches.

    The worker sends it to the network process.
    """

    task: str
    platform: str
    labels: tuple[str, ...] = ()
    explains: bool = False
    embeds: Embeds | None = None
    packs: bool = False
    joins: bool = False

    @property
    def written(self) -> str:
        """The name of the column that `stream` returns in pieces: the text of an answer."""
        return next(column.name for column in self.outputs if column.datatype == "BYTES")


class Running(Protocol):
    """Rows that are answered side by side, in steps, as in `headwise.tasks.text.running.batch.RunningBatch`."""

    def __len__(self) -> int:
        """The number of rows that have no answer yet."""

    def add(self, asked: Any) -> int:
        """Add a row from `Interface.read`. Returns the ticket (a number) with which `step` returns the row's answer."""

    def cancel(self, ticket: int) -> None:
        """Forget the row with this ticket: `step` does not return it any more."""

    def step(self) -> Sequence[tuple[int, Row | Exception]]:
        """Take one step in every row. Returns (ticket, answer or error) of each row that is finished."""


class Interface(Protocol[Asked]):
    """A model in a worker process, called by one thread at a time.

    A row is read once (`read`), for all other methods.
    """

    description: Description
    threads: int  #: of the next call, set by the worker; 0 = as many as the library takes

    def read(self, row: Row) -> Asked:
        """Check and tokenize a row; the result is the `asked` of other methods.

        Raises HeadwiseError if it is invalid.
        """

    def tokens(self, asked: Asked) -> int:
        """The number of tokens of a row, including those that the model cuts, for the limit `max_tokens`."""

    def answer(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """The answers to some rows in one pass, in order. May raise if one of the rows cannot be answered."""

    def running(self, most: int) -> Running:
        """An empty `Running` for at most `most` rows at a time, for a model whose rows join and leave at any step."""

    def stream(self, asked: Asked) -> Iterator[str]:
        """Yield the pieces of the generated text, each as soon as it is ready; joined they are the whole text."""

    def explain(self, asked: Asked) -> dict[str, Any]:
        """The statistics of every attention call of this row, as a JSON object."""

    def attend(self, asked: Asked, places: Sequence[int]) -> dict[str, Any]:
        """The answer to a row with the attention weights that led to it.

        Args:
            places: the queries whose weights are requested, by the numbers of their tokens; negative numbers count from
                the end.

        Returns:
            "answer": a row; "tokens": the names of the tokens; "rows": the places, from 0; "layers": float32 arrays [H,
            rows, K].

        Raises:
            HeadwiseError: a place is out of range, or the model's answer is not one pass over the tokens of the row.
        """

    def page(self, asked: Asked) -> str:
        """The HTML page that shows the attention."""
