"""Examples of about one length share a batch, so that little is padded; the order is a function of seed and epoch.

A run that is resumed in the middle of an epoch makes the same batches again, and leaves out those it has had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from pytorch_lightning import LightningDataModule
from torch.utils.data import DataLoader, Sampler

from headwise.tasks.options.train import TrainOptions
from headwise.tasks.training.sharding import share_of

_POOL = 64  # batches; examples change their company from epoch to epoch, yet a pool has many of about one length


def training_batches(
    lengths: Sequence[int], *, tokens: int, size: int | None, seed: int, epoch: int
) -> list[list[int]]:
    """The batches of an epoch, each the places of its examples; every example is in one of them.

    All examples are shuffled and cut into pools of about 64 batches. A pool is sorted by length and cut into batches,
    and the batches of all pools are shuffled.

    Args:
        lengths: of each example, in tokens.
        tokens: how many a batch may have, padding counted: its examples times the longest of them. An example that is
            longer is a batch by itself.
        size: how many examples a batch may have; None = any number.
    """
    random = np.random.default_rng((seed, epoch))
    of_all = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    order = random.permutation(len(of_all))
    typical = max(1, int(tokens / of_all.mean())) if len(of_all) else 1
    pool = _POOL * (typical if size is None else min(typical, size))
    batches = [
        batch
        for start in range(0, len(order), pool)
        for batch in _cut(order[start : start + pool], of_all, tokens, size, least=1)
    ]
    return [batches[place] for place in random.permutation(len(batches))]


def sorted_batches(lengths: Sequence[int], *, tokens: int, size: int | None, least: int = 1) -> list[list[int]]:
    """Batches with the least padding, the shortest first; where nothing is learned, the order may be the same always.

    Args:
        least: how many examples each batch has at least, even if that makes it larger than `tokens`: one for each
            process.
    """
    of_all = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    return list(_cut(np.arange(len(of_all)), of_all, tokens, size, least))


def _cut(places: Any, lengths: Any, tokens: int, size: int | None, least: int) -> Iterator[list[int]]:
    """Sort some places by length (a stable sort), and cut them where the next would make a batch too large."""
    places = places[np.argsort(lengths[places], kind="stable")]
    longest = lengths[places]
    start = 0
    while start < len(places):
        # The lengths rise, so that the tokens of a batch rise with where it ends: the last end that fits is searched.
        low, high = start + 1, min(len(places), start + (size or len(places)))
        while low < high:
            middle = (low + high + 1) // 2
            if (middle - start) * longest[middle - 1] <= tokens:
                low = middle
            else:
                high = middle - 1
        end = max(low, start + least)
        if 0 < len(places) - end < least:  # the rest would be too few
            end = len(places) - least if len(places) - start >= 2 * least else len(places)
        yield [int(place) for place in places[start:end]]
        start = end


class Shares(Sampler[list[int]]):
    """What one process takes of each batch: every world-th example. It may be nothing.

    Args:
        batches: of all processes together.
        rank, world: see `share_of`.
        done: how many of the batches were taken before; `len` counts them all the same, as Lightning does.
    """

    def __init__(self, batches: Sequence[list[int]], rank: int = 0, world: int = 1, done: int = 0) -> None:
        self.batches, self.rank, self.world, self.done = batches, rank, world, done

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches[self.done :]:
            yield batch[self.rank :: self.world]

    def __len__(self) -> int:
        return len(self.batches)


class Examples(LightningDataModule):
    """The examples of a training, as Lightning asks for them: every epoch its own batches.

    Args:
        collate: examples -> a batch.
        length: an example -> its tokens.
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
        """The batches of an epoch, of all processes together."""
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
        """How many steps all epochs have."""
        return sum(len(self.batches(epoch)) for epoch in range(self.options.epochs))

    def tokens(self, epoch: int, index: int) -> int:
        """Tokens in a batch, padding not counted, of all processes together."""
        return sum(self._lengths[place] for place in self.batches(epoch)[index])

    # What Lightning asks for, before every epoch.

    def train_dataloader(self) -> DataLoader[Any]:
        epoch = self._epoch()
        done = self._resumed[1] if epoch == self._resumed[0] else 0
        return self._loader(self.training, self.batches(epoch), done)

    def val_dataloader(self) -> DataLoader[Any]:
        batches = sorted_batches(
            self._validation_lengths,
            tokens=self.options.batch_tokens,
            size=self.options.batch_size,
            least=share_of(self._trainer()).world,
        )
        return self._loader(self.validation, batches)

    def _loader(self, examples: Sequence[Any], batches: list[list[int]], done: int = 0) -> DataLoader[Any]:
        trainer = self._trainer()

        def collate(share: list[Any]) -> dict[str, Any]:
            # Every process takes every step; one that has no example counts for nothing.
            return self._collate(share) if share else {**self._collate([examples[0]]), "empty": True}

        return DataLoader(
            examples,  # type: ignore[arg-type]  # a list serves
            batch_sampler=Shares(batches, *share_of(trainer), done),
            collate_fn=collate,
            pin_memory=trainer.strategy.root_device.type == "cuda",
        )

    # Where a checkpoint stands.

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
