"""`Task`: what every task of headwise is, one LightningModule each, and what a new one has to say.

A task says how its rows are read and encoded, what its model is, its loss, its scores and its predictions. All else is
the same for all: `fit.py` trains it, `run.py` keeps it in a folder, `batches.py` puts examples of one length together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn

from headwise.tasks.options.train import TrainOptions
from headwise.tasks.scores import Scores
from headwise.tasks.training import optimisation
from headwise.tasks.training.batches import sorted_batches
from headwise.tasks.training.callbacks.finite import check_finite

if TYPE_CHECKING:
    from typing_extensions import Self

    from headwise.records import Seen
    from headwise.tasks.rows.tables import Data

Batch = dict[str, Any]  # names -> tensors, and what only the task itself reads
OptionsT = TypeVar("OptionsT", bound=TrainOptions)


class Task(LightningModule, ABC, Generic[OptionsT]):
    """A task in training, or one that was trained.

    >>> task = Classify.fit("reviews.csv", text="sentence", label="label", out="run")
    >>> task.predict(["a warm, funny film"])
    >>> task.evaluate("test.csv").values["accuracy"]
    """

    name: ClassVar[str]  #: the word of the command, and of the run folder
    options_type: ClassVar[type[TrainOptions]]
    best_by: ClassVar[tuple[str, Literal["max", "min"]]] = ("validation_loss", "min")  #: what the best weights have

    def __init__(self, options: OptionsT, model: nn.Module) -> None:
        super().__init__()
        self.options = options
        self.model = model
        self.scores: Scores | None = None  #: after `fit`: on what was held out

    # What a task says of itself.

    @classmethod
    @abstractmethod
    def read(cls, source: Any, options: OptionsT, *, targets: bool = True) -> Data:
        """The rows of a file, a frame or a data set that the task can use; with `targets`, to learn or score by.

        `Data` that it gave before is given back: so `evaluate` takes the part that was held out.

        Raises:
            FileError, ArgumentError: no such file or column, or nothing in it that could be used.
        """

    @classmethod
    def split(cls, data: Data, options: OptionsT) -> tuple[Data, Data]:
        """What to learn from, and the share of it that is held out to choose the best weights by: rows at random.

        A task whose rows belong together (pieces of one series, questions on one paragraph) holds them out together.
        """
        return data.split(options.validation_share, options.seed)

    @classmethod
    @abstractmethod
    def learn(cls, data: Data, options: OptionsT) -> Self:
        """The task before its first step: what it takes from the data (vocabulary, labels, scales), and its model."""

    @abstractmethod
    def encode(self, data: Data, *, targets: bool = True) -> list[Any]:
        """The examples, each as `collate` takes it. A row may give several (windows), or none."""

    def remarks(self, data: Data) -> tuple[str, ...]:
        """What is to be said of rows that are used, but not whole ("12 texts have more than …"), a sentence each."""
        return ()

    @abstractmethod
    def length(self, example: Any) -> int:
        """How many tokens an example has: examples of about one length share a batch."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """A padded batch, on the CPU."""

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The sum of the losses of a batch, and how many there are (both 0-dimensional)."""

    @abstractmethod
    def predict(self, inputs: Any) -> list[dict[str, Any]]:
        """What the task makes of each input, as columns that can be written to a file."""

    @abstractmethod
    def evaluate(self, source: Any) -> Scores:
        """The scores on rows that have targets, beside those of a trivial baseline."""

    @abstractmethod
    def look(self, inputs: Sequence[str]) -> list[Seen]:
        """What the heads do with each input, run by itself so that nothing is padded: for `headwise view`."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """What was learned from the data besides weights, as JSON has it."""

    @classmethod
    @abstractmethod
    def restore(cls, options: OptionsT, state: dict[str, Any], folder: Path) -> Self:
        """The task as `learn` made it, from `state()` and the files of `save_files`; its weights are loaded after."""

    def rates(self) -> dict[str, float]:
        """The highest learning rate of parameters whose names begin so, where it is not that of the options."""
        return {}

    def save_files(self, folder: Path) -> None:
        """Files of its own beside the weights: a tokenizer. None by default.

        Called before the first step, and again with the best weights.
        """

    # What all have.

    @classmethod
    def fit(
        cls,
        source: Any,
        /,  # translate has an option of that name
        *,
        validation: Any = None,
        out: str | Path | None = None,
        resume: bool = False,
        **options: Any,
    ) -> Self:
        """Train on a file, a frame, a data set of the hub or whatever else `read` takes, and keep the best weights.

        Args:
            source: the data to learn from.
            validation: data to choose the best weights by. None = a share of the source (`validation_share`).
            out: the run folder, which must not hold a run yet; None = nothing is kept but the task that is returned.
            resume: go on with the run in `out` from where it was stopped, with its options; it ends with the weights
                that it would have had without the stop.
            options: the fields of `options_type`.

        Returns:
            The trained task, in eval mode, with its best weights.

        Raises:
            FileError, ArgumentError, DtypeError: data or options that cannot be used; a folder that holds a run.
            CheckpointError: nothing to resume, or not with these data and options.
            TrainingError: the loss is not finite any more; TrainingInterrupted: Ctrl-C, when all is saved.
        """
        from headwise.tasks.training.fit import fit

        return fit(cls, source, validation=validation, out=out, resume=resume, given=options)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The trained task of a run folder, in eval mode, on the device that its options ask for.

        Raises:
            CheckpointError: no run folder, one of another task, one without weights yet, or damaged ones.
        """
        from headwise.tasks.training.run import restore

        return restore(Path(folder), cls)

    def batches(self, examples: Sequence[Any]) -> Iterator[tuple[Batch, list[int]]]:
        """Batches of examples of about one length, on the model's device, each with the places of its examples."""
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

    # What Lightning calls.

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """The gradient is that of the mean over all terms of the batch of all processes, however they are shared."""
        empty = batch.pop("empty", False)
        total, count = self.loss(batch)
        if empty:
            total, count = total * 0, count * 0
        world = self.trainer.world_size
        whole = self._of_all(total, count)
        check_finite(self, whole[0])
        terms = torch.where(whole[1] > 0, whole[1], 1.0)
        # Lightning's strategies take the mean of the gradients of all processes: hence the factor.
        return {"loss": total * (world / terms), "total": whole[0], "terms": whole[1]}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Logs "validation_loss", the mean over all terms. A task that logs more calls this too."""
        self.log_loss(*self.loss(batch))

    def log_loss(self, total: Tensor, count: Tensor) -> None:
        """Log "validation_loss" from what `loss` gave of this process's share of a validation batch."""
        whole = self._of_all(total, count)
        terms = int(whole[1])
        # Lightning's own sum over processes cuts their mean number of terms to a whole number.
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
