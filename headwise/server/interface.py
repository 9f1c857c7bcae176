"""`Interface`: what a served model takes and gives, as rows of named columns: the same for every task and protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from headwise.errors import HeadwiseError

# A row: column name -> str where the column is text, bytes where it is other BYTES, a Python number or bool where its
# shape is (), else a NumPy array of the column's dtype.
Row = dict[str, Any]
Datatype = Literal["BYTES", "BOOL", "INT32", "INT64", "FP32", "FP64"]  # names of the Open Inference Protocol

DTYPES: dict[Datatype, Any] = {  # as NumPy has them
    "BYTES": np.object_,
    "BOOL": np.bool_,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP32": np.float32,
    "FP64": np.float64,
}


@dataclass(frozen=True)
class Column:
    """One column of the rows that a model takes or gives.

    Args:
        name: of the tensor in a request.
        datatype: as the Open Inference Protocol has it. BYTES is UTF-8 text unless `binary`.
        shape: of one row: () = a single value; -1 = any length. A request of N rows has [N, *shape].
        says: what it is, in a few words, for the descriptions that clients read.
        optional: whether a row may lack it.
        binary: BYTES that are not text: an encoded image.
    """

    name: str
    datatype: Datatype
    shape: tuple[int, ...] = ()
    says: str = ""
    optional: bool = False
    binary: bool = False


@dataclass(frozen=True)
class Description:
    """What a protocol has to know of a model; it goes from a worker to the process that answers the network.

    Args:
        task: "classify", "answer", …; "tensors" for an export that is no task's.
        platform: what runs it: "headwise_torch", "headwise_onnx".
        inputs, outputs: the columns of a row.
        labels: of classify, in the order of "probabilities".
        streams: whether `stream` gives text piece by piece.
        explains: whether `explain` and `page` answer.
        example: a row that it can answer: for the OpenAPI page, and to warm up.
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
        """The column that `stream` gives in pieces: the text of an answer."""
        return next(column.name for column in self.outputs if column.datatype == "BYTES")


class Interface(Protocol):
    """A model in a worker. One thread at a time calls it."""

    description: Description

    def tokens(self, row: Row) -> int:
        """How many tokens a row has: what limits are in. Raises HeadwiseError for a row that cannot be used."""

    def answer(self, rows: Sequence[Row]) -> list[Row | HeadwiseError]:
        """What the model makes of each row, in order; an error in the place of a row that cannot be used."""

    def stream(self, row: Row) -> Iterator[str]:
        """Pieces of the text that is written for a row, as soon as each is there; together they are the whole."""

    def explain(self, row: Row) -> dict[str, Any]:
        """The statistics of the record of each attention call that the row gives rise to, as JSON has it."""

    def page(self, row: Row) -> str:
        """The page, HTML, that shows them."""
