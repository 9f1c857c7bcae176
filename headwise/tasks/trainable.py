"""`Trainable`: all of a task that its training needs: reading and encoding rows, the model, the loss, the scores.

`fit.py` trains it, `run.py` saves it in a folder, `batches.py` puts examples of similar length together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar

import torch
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from headwise.tasks.batching import sorted_batches
from headwise.tasks.options.train import TrainOptions
from headwise.tasks.rows.tables import Data, cut_notes
from headwise.tasks.scores import Scores
from headwise.tasks.training import optimisation
from headwise.tasks.training.callbacks.finite import check_finite

if TYPE_CHECKING:
    from typing_extensions import Self

Batch = dict[str, Any]  # names -> tensors, and other values that only the task reads
OptionsT = TypeVar("OptionsT", bound=TrainOptions)


class Trainable(LightningModule, ABC, Generic[OptionsT]):
    """The part of a task that its training needs, with the methods that Lightning calls.

    `Task` adds predictions and everything else.
    """

    name: ClassVar[str]  #: the name in commands and in config.yaml; no other task has it
    options_type: ClassVar[type[TrainOptions]]  #: the class of its options, with texts for --help and cards
    best_by: ClassVar[tuple[str, Literal["max", "min"]]] = (
        "validation_loss",
        "min",
    )  #: the score that selects the best weights
    label_column: ClassVar[str | None] = None  #: the column of `Data` with labels, which `split` keeps in proportion
    #: the scores of `evaluate` by which the model should beat the baselines, and whether more of each is better
    compared_by: ClassVar[tuple[tuple[str, Literal["max", "min"]], ...]] = ()

    def __init__(self, options: OptionsT, model: nn.Module) -> None:
        super().__init__()
        self.options = options
        self.model = model
        self.scores: Scores | None = None  #: after `fit`: the validation scores, and what to know about them
        self.validated = 0  #: terms of the loss in the last validation
        self.on_torch = True  #: False in a task of `headwise.export.load`, whose model another runtime computes

    # Defined by each task.

    @classmethod
    @abstractmethod
    def read(cls, source: Any, options: OptionsT, *, targets: bool = True) -> Data:
        """Read the usable rows of a file, a DataFrame or a data set. Training and scoring need `targets`.

        `Data` that this method returned before is returned unchanged, so `evaluate` accepts the held-out part.

        Raises:
            FileError, ArgumentError: the file or a column is missing, or no row is usable.
        """

    @classmethod
    def split(cls, data: Data, options: OptionsT) -> tuple[Data, Data]:
        """Split into (training data, rows held out to select the best weights): at random, all labels in both parts.

        A task with related rows (pieces of one series, questions on one paragraph) keeps them together.
        """
        return data.split(options.validation_share, options.seed, by=cls.label_column)

    @classmethod
    @abstractmethod
    def learn(cls, data: Data, options: OptionsT) -> Self:
        """Make the task before its first step: its state from the data (vocabulary, labels, scales), and its model."""

    @abstractmethod
    def encode(self, data: Data, *, targets: bool = True) -> list[Any]:
        """Make the examples of the rows, for `collate`. A row may give several examples (windows), or none."""

    def cut(self, inputs: Any) -> dict[int, str]:
        """Return a dict: index of an input of which `predict` reads only a part -> why, "more than 512 tokens, …".

        By default none.
        """
        return {}

    def remarks(self, data: Data) -> tuple[str, ...]:
        """Return notes on rows that are learned or scored only in part, one sentence each. By default from `cut`."""
        return cut_notes(self.cut(data), data.numbers, data.unit)

    def settle(self, held_out: Data) -> bool:
        """After the training, choose what is left to choose by the held-out data. Returns whether weights changed.

        By default nothing.
        """
        return False

    @abstractmethod
    def length(self, example: Any) -> int:
        """Return the number of tokens in an example; examples of similar length share a batch."""

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> Batch:
        """Make a padded batch of examples, on the CPU."""

    @abstractmethod
    def loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (sum of the losses of a batch, number of terms in this sum), both 0-dimensional."""

    @abstractmethod
    def evaluate(self, source: Any) -> Scores:
        """Return the scores on rows that have targets, beside the scores of a trivial baseline."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the state of the task besides weights (vocabulary, labels, scales), as JSON data."""

    @classmethod
    @abstractmethod
    def restore(cls, options: OptionsT, state: dict[str, Any], folder: Path) -> Self:
        """Rebuild the task from `state()` and the files of `save_files`; its weights are loaded afterwards."""

    def rates(self) -> dict[str, float]:
        """Return a dict: prefix of parameter names -> their highest learning rate, where it differs from `lr`."""
        return {}

    def save_files(self, folder: Path) -> None:
        """Write the task's own files, such as a tokenizer, but no weights. By default none.

        Called before the first step and again at the end.
        """

    # Shared by all tasks.

    def batches(self, examples: Sequence[Any]) -> Iterator[tuple[Batch, list[int]]]:
        """Yield batches of examples of similar length, on the model's device, each with the indices of its examples."""
        lengths = [self.length(example) for example in examples]
        for places in sorted_batches(lengths, tokens=self.options.batch_tokens, size=self.options.batch_size):
            batch = self.collate([examples[place] for place in places])
            yield self.transfer_batch_to_device(batch, self.device, 0), places

    @torch.no_grad()
    def mean_loss(self, examples: Sequence[Any]) -> float:
        """Compute the mean loss over examples, in eval mode."""
        training = self.training
        self.eval()
        try:
            sums = [self.loss(batch) for batch, _ in self.batches(examples)]
        finally:
            self.train(training)
        return sum(float(total) for total, _ in sums) / sum(float(count) for _, count in sums)

    # Called by Lightning.

    def on_train_start(self) -> None:
        if isinstance(schedule := self.lr_schedulers(), LambdaLR):
            optimisation.renew_rates(schedule)

    def training_step(self, batch: Batch, batch_idx: int) -> dict[str, Tensor]:
        """Compute the loss. Its gradient is that of the mean over all terms of all processes' batches, of any size."""
        empty = batch.pop("empty", False)
        total, count = self.loss(batch)
        if empty:
            total, count = total * 0, count * 0
        world = self.trainer.world_size
        whole = self._sum_shares(total, count)
        check_finite(self.trainer, self.options, whole[0])
        terms = torch.where(whole[1] > 0, whole[1], 1.0)
        # The factor, because Lightning's strategies average the gradients of all processes.
        return {"loss": total * (world / terms), "total": whole[0], "terms": whole[1]}

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        """Log "validation_loss", the mean over all terms. A task that logs more scores calls this method too."""
        self.log_loss(*self.loss(batch))

    def log_loss(self, total: Tensor, count: Tensor) -> None:
        """Log "validation_loss", from the result of `loss` for this process's part of a validation batch."""
        whole = self._sum_shares(total, count)
        terms = int(whole[1])
        self.validated += terms
        # Lightning's own reduction truncates the mean number of terms to an integer.
        mean = whole[0] / max(terms, 1)
        self.log("validation_loss", mean, on_step=False, on_epoch=True, sync_dist=True, batch_size=terms)

    def _sum_shares(self, total: Tensor, count: Tensor) -> Tensor:
        """Add up over all processes: [sum of the losses, number of terms], a tensor [2]."""
        whole = torch.stack((total.detach().float(), count.detach().float()))
        if self.trainer.world_size > 1:
            torch.distributed.all_reduce(whole)
        return whole

    def configure_optimizers(self) -> Any:
        steps = self.trainer.datamodule.steps()  # type: ignore[attr-defined]
        return optimisation.configure(self, self.options, steps, self.rates())
