"""The training examples as batches for Lightning. Only seed and epoch decide the order of the batches.

A run that is resumed in the middle of an epoch makes the same batches again, and skips those that were already used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from headwise.tasks.batching import sorted_batches, training_batches
from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training.sharding import find_share


class Shares(Sampler[list[int]]):
    """The examples that one process takes of each batch: every `world`-th example, perhaps none.

    Args:
        batches: the batches of all processes together.
        rank, world: see `find_share`.
        done: the number of batches that were taken before, in a run that is resumed; `len` counts them, like Lightning.
    """

    def __init__(self, batches: Sequence[list[int]], rank: int = 0, world: int = 1, done: int = 0) -> None:
        self.batches, self.rank, self.world, self.done = batches, rank, world, done

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches[self.done :]:
            yield batch[self.rank :: self.world]

    def __len__(self) -> int:
        return len(self.batches)


class Examples(LightningDataModule):
    """The examples of a training as a data module for Lightning: each epoch has its own batches.

    Args:
        collate: a function: examples -> a batch.
        length: a function: an example -> its number of tokens.
    """

    def __init__(
        self,
        training: Sequence[Any],
        validation: Sequence[Any],
        *,
        collate: Callable[[Sequence[Any]], dict[str, Any]],
        length: Callable[[Any], int],
        options: TrainOptions,
    ) -> None:
        super().__init__()
        self.training, self.validation, self.options = training, validation, options
        self._collate = collate
        self._lengths = [length(example) for example in training]
        self._validation_lengths = [length(example) for example in validation]
        self._resumed = (0, 0)
        self._made: tuple[int, list[list[int]]] = (-1, [])

    def batches(self, epoch: int) -> list[list[int]]:
        """Return the batches of an epoch, before they are divided among processes, as the indices of examples."""
        if self._made[0] != epoch:
            options = self.options
            self._made = (
                epoch,
                training_batches(
                    self._lengths, tokens=options.batch_tokens, size=options.batch_size, seed=options.seed, epoch=epoch
                ),
            )
        return self._made[1]

    def steps(self) -> int:
        """Return the number of steps in all epochs."""
        return sum(len(self.batches(epoch)) for epoch in range(self.options.epochs))

    def tokens(self, epoch: int, index: int) -> int:
        """Return the number of tokens in a batch without padding, over all processes."""
        return sum(self._lengths[place] for place in self.batches(epoch)[index])

    # Called by Lightning before every epoch.

    def train_dataloader(self) -> DataLoader[Any]:
        epoch = self._epoch()
        done = self._resumed[1] if epoch == self._resumed[0] else 0
        return self._loader(self.training, self.batches(epoch), done)

    def val_dataloader(self) -> DataLoader[Any]:
        batches = sorted_batches(
            self._validation_lengths,
            tokens=self.options.batch_tokens,
            size=self.options.batch_size,
            least=find_share(self._trainer()).world,
        )
        return self._loader(self.validation, batches)

    def _loader(self, examples: Sequence[Any], batches: list[list[int]], done: int = 0) -> DataLoader[Any]:
        trainer = self._trainer()

        def collate(share: list[Any]) -> dict[str, Any]:
            # Every process takes every step; a process without an example has no weight.
            return self._collate(share) if share else {**self._collate([examples[0]]), "empty": True}

        return DataLoader(
            examples,  # type: ignore[arg-type]  # a list serves
            batch_sampler=Shares(batches, *find_share(trainer), done),
            collate_fn=collate,
            pin_memory=trainer.strategy.root_device.type == "cuda",
        )

    # The state in a checkpoint.

    def state_dict(self) -> dict[str, Any]:
        loop = self._trainer().fit_loop
        middle = loop.epoch_progress.current.ready != loop.epoch_progress.current.processed
        return {"epoch": self._epoch(), "batch": loop.epoch_loop.batch_progress.current.processed if middle else 0}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed = state_dict["epoch"], state_dict["batch"]

    def _epoch(self) -> int:
        return int(self._trainer().fit_loop.epoch_progress.current.processed)

    def _trainer(self) -> Any:
        return self.trainer
