"""`Interface`: the inputs and outputs of a served model as rows of named columns, for every task and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import numpy as np

from headwise.errors import HeadwiseError

# A row maps a column name to: str for text, bytes for other BYTES, a Python number or bool if the column's
# shape is (), otherwise a NumPy array of the column's dtype.
Row = dict[str, Any]
Asked = TypeVar("Asked")  # a row in the form that the model reads
Datatype = Literal["BYTES", "BOOL", "INT32", "INT64", "FP32", "FP64"]  # names of the Open Inference Protocol

DTYPES: dict[Datatype, Any] = {  # the NumPy dtypes
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True)
class Column:
    """One column of the rows that a model takes or returns.

    Args:
        name: the name of the tensor in a request.
        datatype: of the Open Inference Protocol. BYTES is UTF-8 text unless `binary`.
        shape: of one row: () = a single value; -1 = any length. A request with N rows has [N, *shape].
        says: a short description for clients.
        optional: whether a row may lack it.
        binary: BYTES that are not text, such as an encoded image.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] = ()
    says: str = ""
    optional: bool = False
    binary: bool = False


@dataclass(frozen=True)
class Description:
    """What a protocol needs to know about a model. The worker sends it to the network process.

    Args:
        task: "classify", "answer", …; "tensors" for an export that belongs to no task.
        platform: what runs the model: "headwise_torch" or "headwise_onnx".
        inputs, outputs: the columns of a row.
        labels: for classify, in the order of "probabilities".
        streams: whether `stream` is supported: text piece by piece.
        explains: whether `explain` and `page` are supported.
        example: a valid row, for the OpenAPI page and for warm-up.
    """

    task: str
    platform: str
    inputs: tuple[Column, ...]
    outputs: tuple[Column, ...]
    labels: tuple[str, ...] = ()
    streams: bool = False
    explains: bool = False
    example: Row | None = None

    @property
    def written(self) -> str:
        """The column that `stream` returns in pieces: the text of an answer."""
        return next(column.name for column in self.outputs if column.datatype == "BYTES")


class Interface(Protocol[Asked]):
    """A model in a worker. It is called by one thread at a time. A row is read once, for whatever is asked of it."""

    description: Description

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

    def page(self, asked: Asked) -> str:
        """The HTML page that shows the attention."""
