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
    """The properties of a model that turns texts into vectors (embeddings).

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
    """The properties of a model that a protocol must know: the columns of its rows (from `Columns`), and these.

    Args:
        task: "classify", "answer", …; "tensors" for an export that belongs to no task.
        platform: what runs the model: "headwise_torch" or "headwise_onnx".
        labels: the labels of a classifier, in the order of "probabilities".
        explains: whether `explain` and `page` are supported.
        embeds: the properties of the vectors that the model makes of texts; None = it makes no vectors.
        packs: whether rows of different lengths share a batch without padding.
        joins: whether rows are answered by continuous batching (`Interface.running`): a row joins or leaves the batch
            at any step. Otherwise a batch is computed as a whole.

    The worker sends the description to the network process.
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
        """The name of the output column that holds the generated text: the column that `stream` returns in pieces."""
        return next(column.name for column in self.outputs if column.datatype == "BYTES")


class Running(Protocol):
    """Rows that are answered at the same time, step by step (continuous batching), such as a `RunningBatch`."""

    def __len__(self) -> int:
        """Return the number of rows that have no answer yet."""

    def add(self, asked: Any) -> int:
        """Add a row from `Interface.read`. Returns the ticket (a number) with which `step` returns the row's answer."""

    def cancel(self, ticket: int) -> None:
        """Forget the row with this ticket: `step` will not return its answer."""

    def step(self) -> Sequence[tuple[int, Row | Exception]]:
        """Advance every row by one step (token). Returns (ticket, answer or error) of each row that is finished."""


class Interface(Protocol[Asked]):
    """A model in a worker process, called with rows by one thread at a time.

    Each row is first passed to `read`; the other methods take the result of `read`, which they call `asked`.
    """

    description: Description
    threads: int  #: number of threads for the next call, set by the worker; 0 = the library's default

    def read(self, row: Row) -> Asked:
        """Check and tokenize a row; the result is the `asked` of other methods.

        Raises HeadwiseError if the row is invalid.
        """

    def tokens(self, asked: Asked) -> int:
        """Return the number of tokens of a row before the model cuts it, for the limit `max_tokens`."""

    def answer(self, asked: Sequence[Asked]) -> Sequence[Row | HeadwiseError]:
        """Return the answers to some rows, in order. They are computed together, so one bad row may make it raise."""

    def running(self, most: int) -> Running:
        """Return an empty `Running` for at most `most` rows at a time, if the description of the model has `joins`."""

    def stream(self, asked: Asked) -> Iterator[str]:
        """Yield the pieces of the generated text, each as soon as it is ready; joined they are the whole text."""

    def explain(self, asked: Asked) -> dict[str, Any]:
        """Return the statistics of every attention call of this row, as a JSON object."""

    def attend(self, asked: Asked, places: Sequence[int]) -> dict[str, Any]:
        """Return the answer to a row together with the attention weights from which it was computed.

        Args:
            places: the indices of the tokens (as queries) whose weights are requested; negative indices count from the
                end.

        Returns:
            "answer": a row; "tokens": the names of the tokens; "rows": `places` as indices from 0; "layers": for each
            layer the weights, a float32 array [H, rows, K].

        Raises:
            HeadwiseError: an index is out of range, or the model does not compute its answer in one pass over the
                tokens of the row.
        """

    def page(self, asked: Asked) -> str:
        """Return the HTML page that shows the attention."""
