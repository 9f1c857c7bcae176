"""`Task`: the base class of all tasks, a LightningModule, and the methods that a new task has to define.

A task defines how its rows are read and encoded, its model, its loss, its scores and its predictions. Everything else
is shared. The methods of a task that its training needs are in `Trainable`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from headwise.errors import ArgumentError, HeadwiseError
from headwise.graphs.session import replace_forward
from headwise.tasks import registered
from headwise.tasks.columns import Columns, Row, take_cell
from headwise.tasks.options.train import COLUMN
from headwise.tasks.rows.tables import Data
from headwise.tasks.trainable import Batch, OptionsT, Trainable
from headwise.tasks.training import run

if TYPE_CHECKING:
    from typing_extensions import Self

    from headwise.graphs.graph import Graph
    from headwise.graphs.session import Sessions
    from headwise.records import Seen
    from headwise.tasks.text.running.batch import RunningBatch

__all__ = ["SEPARATOR", "Batch", "Task"]

SEPARATOR = "[SEP]"  # between the two texts of one input, if they are written as one string


class Task(Trainable[OptionsT]):
    """A kind of prediction (such as `Classify`) with its model, before, during and after its training.

    >>> task = Classify.fit("reviews.csv", text="sentence", label="label", out="run")
    >>> task.predict(["a warm, funny film"])
    >>> task.evaluate("test.csv").values["accuracy"]
    """

    labels: Collection[str] = ()  #: the labels of the outputs "logits" of a classifier, in their order
    reads_files: ClassVar[bool] = False  #: whether a file is one input, read whole (series), not one input per row
    reads_documents: ClassVar[bool] = False  #: whether a .txt file has documents of several lines, not one per line

    def __init_subclass__(cls, **given: Any) -> None:
        """Register a subclass that defines a `name`, for commands, `load`, exports and servers."""
        super().__init_subclass__(**given)
        if "name" in vars(cls):
            registered.register(cls.name, cls, cls.options_type)

    # Methods that each task defines.

    @abstractmethod
    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """Return the prediction for each input: a dict of columns, which can be written to a file."""

    @abstractmethod
    def look(self, inputs: Any) -> list[Seen]:
        """Return the attention for each of the inputs that `predict` takes, read as `predict` reads it.

        Each input is run separately, so that nothing is padded. For `headwise view`.
        """

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """Return the graphs of the model (its computation as functions of tensors), for exports. By default none.

        Args:
            rows: real inputs for the example tensors, in the form that `predict` takes; None = only random inputs, and
                real inputs that the task has kept.

        Raises:
            ArgumentError: the task has no graphs, or cannot read the rows.
        """
        raise ArgumentError(f"the task {self.name} cannot be exported: its class defines no graphs")

    def run_on(self, sessions: Sessions) -> None:
        """Replace the model's computation by another runtime's, which has loaded `graphs`; other code stays the same.

        By default the graph "model" replaces the model's `forward`, called with tensors by position.

        Raises:
            CheckpointError: a graph, or an output of a graph, is missing.
        """
        replace_forward(self.model, sessions["model"])

    # For `headwise serve`: a row of a request is read once, and then answered, streamed or looked at. A task that
    # defines `columns` can be served; the other methods have defaults that call `read`, `predict` and `look`.

    def columns(self) -> Columns:
        """Return the columns of a row of a request, and the columns of its answer, for a server.

        Raises:
            ArgumentError: the task defines no columns.
        """
        raise ArgumentError(
            f"{self.name} cannot be served: expected a task whose class defines columns(), the columns of a row and of "
            f"its answer. Received: {type(self).__name__} without columns()"
        )

    def read_row(self, row: Row) -> Any:
        """Check and tokenize a row of a request; the result is the argument `asked` of the methods below.

        By default the cells are checked, and the result is an input of `predict`.

        Raises:
            HeadwiseError: a cell is invalid; the message names its column.
        """
        return {
            column.name: take_cell(row, column) for column in self.columns().inputs if row.get(column.name) is not None
        }

    def count_tokens(self, asked: Any) -> int:
        """Return the number of tokens of a row, including tokens that the model cuts.

        By default it is the sum over the examples that are made of the row.
        """
        data = self.read([asked], self.options, targets=False)
        return sum(self.length(example) for example in self.encode(data, targets=False))

    @property
    def packs(self) -> bool:
        """Whether `answer_rows` reads rows of different lengths without padding. By default it does not."""
        return False

    def answer_rows(self, asked: Sequence[Any]) -> Sequence[Row | HeadwiseError]:
        """Return the answers to some rows, in order, or errors in their places. By default those of `predict`."""
        return self.predict(list(asked))

    def stream_row(self, asked: Any) -> Iterator[str]:
        """Yield the text of the answer in pieces, each as soon as it is final, if `columns` has `streams`."""
        raise ArgumentError(f"{self.name} does not generate text piece by piece")

    def running(self, most: int) -> RunningBatch[Row] | None:
        """Return an empty batch for continuous batching: each row joins and leaves the batch at any step.

        The answers are the same as from `answer_rows`. None (the default) = the task answers in one pass, or its
        runtime does not support continuous batching.

        Args:
            most: the largest number of rows at a time.
        """
        return None

    def look_at(self, asked: Any) -> tuple[Seen, Any]:
        """Return (attention for a row, the image whose patches are tokens: uint8 [H, W] or [H, W, 3], else None)."""
        (seen,) = self.look([asked])
        return seen, None

    def names_of(self, asked: Any) -> list[str] | None:
        """Return the names of a row's tokens if `answer_rows` is one pass of attention over these tokens; else None."""
        return None

    # Prediction for the rows of a file.

    @property
    def reads_pairs(self) -> bool:
        """Whether an input is two texts, which may be given as one string "first [SEP] second"."""
        return False

    def file_columns(self, source: Any) -> tuple[str, ...]:
        """Return the names of the columns that `read` looks for in a file.

        By default these are the values of the options that are made by `column`.
        """
        named = [each.name for each in fields(self.options) if each.metadata.get("metavar") == COLUMN]
        return tuple(column for name in named if (column := getattr(self.options, name)) is not None)

    def asked(self, source: Any) -> Data:
        """Read the rows of a table as inputs of `predict`."""
        return self.read(source, self.options, targets=False)

    # Shared by all tasks.

    @classmethod
    def fit(
        cls,
        source: Any,
        /,  # translate has an option named source
        *,
        validation: Any = None,
        out: str | Path | None = None,
        resume: bool = False,
        **options: Any,
    ) -> Self:
        """Train on a file, a DataFrame, a data set of the hub or another input of `read`, and keep the best weights.

        Args:
            source: the training data.
            validation: data for selecting the best weights. None = a share of the source (`validation_share`).
            out: the run folder, which must not exist yet; None = no folder, only the returned task.
            resume: continue the training in `out` where it was stopped, with its options; it takes the same steps as
                without the stop.
            options: the fields of `options_type`.

        Returns:
            The trained task, in eval mode, with its best weights.

        Raises:
            FileError, ArgumentError, DtypeError: invalid data or options, or `out` is already a run folder.
            CheckpointError: there is nothing to resume, or data or options differ.
            TrainingError: the loss is not finite. TrainingInterrupted: Ctrl-C, after the state is saved.
        """
        from headwise.tasks.training.fit import fit

        return fit(cls, source, validation=validation, out=out, resume=resume, given=options)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Load the trained task of a run folder, in eval mode, on the device in its options.

        Raises:
            CheckpointError: the folder is not a run folder, or of another task, or its weights are missing or damaged.
        """
        return run.restore(Path(folder), cls)
