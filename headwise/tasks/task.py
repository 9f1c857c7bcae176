"""`Task`: the base class of all tasks, a LightningModule, and the methods that a new task has to define.

A task defines how its rows are read and encoded, its model, its loss, its scores and its predictions. Everything else
is shared: `fit.py` trains it, `run.py` saves it in a folder, `batches.py` puts examples of similar length together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from headwise.errors import ArgumentError, HeadwiseError
from headwise.graphs.session import replace_forward
from headwise.tasks import kinds
from headwise.tasks.batching import sorted_batches
from headwise.tasks.columns import Columns, Row, cell_of
from headwise.tasks.options.train import COLUMN, TrainOptions
from headwise.tasks.rows.tables import Data, cut_notes
from headwise.tasks.scores import Scores
from headwise.tasks.training import optimisation
from headwise.tasks.training.callbacks.finite import check_finite

if TYPE_CHECKING:
    from typing_extensions import Self

    from headwise.graphs.graph import Graph
    from headwise.graphs.session import Sessions
    from headwise.records import Seen
    from headwise.tasks.text.running.batch import RunningBatch

Batch = dict[str, Any]  # names -> tensors, and other values that only the task reads
OptionsT = TypeVar("OptionsT", bound=TrainOptions)
SEPARATOR = "[SEP]"  # between the two texts of one input, if they are written as one string


class Task(LightningModule, ABC, Generic[OptionsT]):
    """A task, before, during or after training.

    >>> task = Classify.fit("reviews.csv", text="sentence", label="label", out="run")
    >>> task.predict(["a warm, funny film"])
    >>> task.evaluate("test.csv").values["accuracy"]
    """

    name: ClassVar[str]  #: the name in commands and in config.yaml; no other task has it
    options_type: ClassVar[type[TrainOptions]]  #: with its sentence and examples for --help and cards
    best_by: ClassVar[tuple[str, Literal["max", "min"]]] = (
        "validation_loss",
        "min",
    )  #: the score that selects the best weights
    labels: Collection[str] = ()  #: the labels of the outputs "logits" of a classifier, in their order
    reads_files: ClassVar[bool] = False  #: whether a file is one input, read whole (series), not one input per row
    reads_documents: ClassVar[bool] = False  #: whether a .txt file has documents of several lines, not one per line
    label_column: ClassVar[str | None] = None  #: the column of `Data` with labels, which `split` keeps in proportion
    #: the scores of `evaluate` by which the model should beat the baselines, and whether more of each is better
    compared_by: ClassVar[tuple[tuple[str, Literal["max", "min"]], ...]] = ()

    def __init__(self, options: OptionsT, model: nn.Module) -> None:
        super().__init__()
        self.options = options
        self.model = model
        self.scores: Scores | None = None  #: after `fit`: the validation scores, and what to know about them
        self.on_torch = True  #: False in a task of `headwise.export.load`, whose model another runtime computes

    def __init_subclass__(cls, **given: Any) -> None:
        """Register a class with its own `name` for commands, `load`, exports and servers."""
        super().__init_subclass__(**given)
        if "name" in vars(cls):
            kinds.register(cls)

    # Defined by each task.

    @classmethod
    @abstractmethod
    def read(cls, source: Any, options: OptionsT, *, targets: bool = True) -> Data:
        """The usable rows of a file, a DataFrame or a data set; with `targets`, to train or score.

        `Data` that it returned before is returned unchanged, so `evaluate` accepts the held-out part.

        Raises:
            FileError, ArgumentError: the file or a column is missing, or no row is usable.
        """

    @classmethod
    def split(cls, data: Data, options: OptionsT) -> tuple[Data, Data]:
        """Training data, and a random share of rows held out to select the best weights, with all labels in both.

        A task with related rows (pieces of one series, questions on one paragraph) keeps them together.
        """
        return data.split(options.validation_share, options.seed, by=cls.label_column)

    @classmethod
    @abstractmethod
    def learn(cls, data: Data, options: OptionsT) -> Self:
        """The task before its first step: its state from the data (vocabulary, labels, scales), and its model."""

    @abstractmethod
    def encode(self, data: Data, *, targets: bool = True) -> list[Any]:
        """The examples in the form that `collate` takes. A row may give several (windows), or none."""

    def cut(self, inputs: Any) -> dict[int, str]:
        """The inputs of `predict` that it reads only in part: their places -> "more than 512 tokens, the rest was cut".

        By default none.
        """
        return {}

    def remarks(self, data: Data) -> tuple[str, ...]:
        """Notes on rows that are learned or scored only in part, one sentence each. By default those of `cut`."""
        return cut_notes(self.cut(data), data.numbers, data.unit)

    def settle(self, held_out: Data) -> bool:
        """After the training, make choices by the held-out data. Returns whether weights changed."""
        return False

    @abstractmethod
    def length(self, example: Any) -> int:
        """The number of tokens in an example; examples of similar length share a batch."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """A padded batch, on the CPU."""

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the losses of a batch, and the number of its terms (both 0-dimensional)."""

    @abstractmethod
    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """The prediction for each input, as columns that can be written to a file."""

    @abstractmethod
    def evaluate(self, source: Any) -> Scores:
        """The scores on rows that have targets, beside those of a trivial baseline."""

    @abstractmethod
    def look(self, inputs: Any) -> list[Seen]:
        """The attention for each of the inputs that `predict` takes, read as `predict` reads it.

        Each is run separately, so that nothing is padded. For `headwise view`.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """The state besides weights (vocabulary, labels, scales), as JSON."""

    @classmethod
    @abstractmethod
    def restore(cls, options: OptionsT, state: dict[str, Any], folder: Path) -> Self:
        """Rebuild the task from `state()` and the files of `save_files`; its weights are loaded afterwards."""

    def graphs(self, rows: Any = None) -> tuple[Graph, ...]:
        """The computation of the model as functions of tensors, for exports. By default there is none.

        Args:
            rows: real inputs for the examples, in the form that `predict` takes; None = only random ones, and those
                that the task keeps.

        Raises:
            ArgumentError: the task has no graphs, or cannot read the rows.
        """
        raise ArgumentError(f"the task {self.name} cannot be exported: its class defines no graphs")

    def run_on(self, sessions: Sessions) -> None:
        """Let a runtime that has loaded `graphs` compute what the model computes; all else is the same code.

        By default the graph "model" replaces the model's `forward`, called with tensors by position.

        Raises:
            CheckpointError: a graph, or an output of one, is missing.
        """
        replace_forward(self.model, sessions["model"])

    def rates(self) -> dict[str, float]:
        """Prefix of parameter names -> their highest learning rate, if it differs from `lr`."""
        return {}

    def save_files(self, folder: Path) -> None:
        """Write the task's own files, such as a tokenizer. By default none.

        Called before the first step, and again with the best weights.
        """

    # For `headwise serve`: a row of a request is read once, and then answered, streamed or looked at. A task that
    # defines `columns` can be served; the other methods have defaults that call `read`, `predict` and `look`.

    def columns(self) -> Columns:
        """The columns of a row and of its answer.

        Raises:
            ArgumentError: the task defines no columns.
        """
        raise ArgumentError(
            f"{self.name} cannot be served: expected a task whose class defines columns(), the columns of a row and of "
            f"its answer. Received: {type(self).__name__} without columns()"
        )

    def read_row(self, row: Row) -> Any:
        """A row with the columns of `columns`, checked and tokenized, for the methods below.

        By default the row itself, its cells checked by their columns, as an input of `predict`.

        Raises:
            HeadwiseError: a cell is invalid; the message names its column.
        """
        return {
            column.name: cell_of(row, column) for column in self.columns().inputs if row.get(column.name) is not None
        }

    def count_tokens(self, asked: Any) -> int:
        """The number of tokens of a row, including those beyond the model's limit if it cuts.

        By default the sum over the examples of the row.
        """
        data = self.read([asked], self.options, targets=False)
        return sum(self.length(example) for example in self.encode(data, targets=False))

    @property
    def packs(self) -> bool:
        """Whether `answer_rows` reads rows of different lengths without padding. By default it does not."""
        return False

    def answer_rows(self, asked: Sequence[Any]) -> Sequence[Row | HeadwiseError]:
        """The answers to some rows, in order; an error for a row that has none. By default those of `predict`."""
        return self.predict(list(asked))

    def stream_row(self, asked: Any) -> Iterator[str]:
        """The text of the answer in pieces, each as soon as it is final, if `columns` says that it streams."""
        raise ArgumentError(f"{self.name} does not generate text piece by piece")

    def running(self, most: int) -> RunningBatch[Row] | None:
        """An empty batch in which rows are answered side by side, each of which joins and leaves at any step.

        Its answers are those of `answer_rows`. None = the task answers in one pass, or in a runtime that cannot do
        this: this is the default.

        Args:
            most: the most rows at a time.
        """
        return None

    def look_at(self, asked: Any) -> tuple[Seen, Any]:
        """The attention for a row, and the image whose patches are tokens: uint8 [H, W] or [H, W, 3], or None."""
        (seen,) = self.look([asked])
        return seen, None

    def names_of(self, asked: Any) -> list[str] | None:
        """The names of a row's tokens, if `answer_rows` is one pass of attention over them. None = it is not."""
        return None

    # Prediction for the rows of a file.

    @property
    def reads_pairs(self) -> bool:
        """Whether an input is two texts, as one string "first [SEP] second"."""
        return False

    def file_columns(self, source: Any) -> tuple[str, ...]:
        """The columns of a file that `read` looks for. By default the options made by `column` name them."""
        named = [each.name for each in fields(self.options) if each.metadata.get("metavar") == COLUMN]
        return tuple(column for name in named if (column := getattr(self.options, name)) is not None)

    def asked(self, source: Any) -> Data:
        """The rows of a table as inputs of `predict`."""
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
        """The trained task of a run folder, in eval mode, on the device in its options.

        Raises:
            CheckpointError: the folder is not a run folder, or of another task, or its weights are missing or damaged.
        """
        from headwise.tasks.training.run import restore

        return restore(Path(folder), cls)

    def batches(self, examples: Sequence[Any]) -> Iterator[tuple[Batch, list[int]]]:
        """Batches of examples of similar length, on the model's device, each with the indices of its examples."""
        lengths = [self.length(example) for example in examples]
        for places in sorted_batches(lengths, tokens=self.options.batch_tokens, size=self.options.batch_size):
            batch = self.collate([examples[place] for place in places])
            yield self.transfer_batch_to_device(batch, self.device, 0), places

    @torch.no_grad()
    def mean_loss(self, examples: Sequence[Any]) -> float:
        """The mean loss of examples in eval mode."""
        training = self.training
        self.eval()
        try:
            sums = [self.loss(batch) for batch, _ in self.batches(examples)]
        finally:
            self.train(training)
        return sum(float(total) for total, _ in sums) / sum(float(count) for _, count in sums)

    # Called by Lightning.

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The gradient of the mean over all terms of the batch of all processes, whatever their shares."""
        empty = batch.pop("empty", False)
        total, count = self.loss(batch)
        if empty:
            total, count = total * 0, count * 0
        world = self.trainer.world_size
        whole = self._of_all(total, count)
        check_finite(self, whole[0])
        terms = torch.where(whole[1] > 0, whole[1], 1.0)
        # The factor, because Lightning's strategies average the gradients of all processes.
        return {"loss": total * (world / terms), "total": whole[0], "terms": whole[1]}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs "validation_loss", the mean over all terms. A task that logs more calls this too."""
        self.log_loss(*self.loss(batch))

    def log_loss(self, total: Tensor, count: Tensor) -> None:
        """Log "validation_loss" from the result of `loss` for this process's share of a validation batch."""
        whole = self._of_all(total, count)
        terms = int(whole[1])
        # Lightning's own reduction truncates the mean number of terms to an integer.
        mean = whole[0] / max(terms, 1)
        self.log("validation_loss", mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=terms)

    def _of_all(self, total: Tensor, count: Tensor) -> Tensor:
        """The sum of the losses and their number [2], over the shares of all processes."""
        whole = torch.stack((total.detach().float(), count.detach().float()))
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(whole)
        return whole

    def configure_optimizers(self) -> Any:
        steps = self.trainer.datamodule.steps()  # type: ignore[attr-defined]
        return optimisation.configure(self, self.options, steps, self.rates())
