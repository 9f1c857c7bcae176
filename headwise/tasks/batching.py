"""Puts examples of similar length into one batch, so that little is padded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

_POOL = 64  # batches in a pool; its batches change from epoch to epoch, but a pool has many examples of similar length


def training_batches(
    lengths: Sequence[int], *, tokens: int, size: int | None, seed: int, epoch: int
) -> list[list[int]]:
    """Make the batches of an epoch, each as the indices of its examples; every example is in one batch.

    All examples are shuffled and cut into pools of about 64 batches. A pool is sorted by length and cut into batches,
    and the batches of all pools are shuffled.

    Args:
        lengths: the length of each example, in tokens.
        tokens: the largest number of tokens in a batch, with padding: the number of examples times the longest length.
            An example that is longer is a batch by itself.
        size: the largest number of examples in a batch; None = any number.
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
    """Make batches with the least padding, the shortest examples first. For passes without training, in a fixed order.

    Args:
        least: the smallest number of examples per batch, such as one for each process, even if the batch then has more
            than `tokens` tokens.
    """
    of_all = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    return list(_cut(np.arange(len(of_all)), of_all, tokens, size, least))


def _cut(places: Any, lengths: Any, tokens: int, size: int | None, least: int) -> Iterator[list[int]]:
    """Sort the examples `places` by length (stable), and cut the sorted list where a batch would become too large."""
    places = places[np.argsort(lengths[places], kind="stable")]
    longest = lengths[places]
    start = 0
    while start < len(places):
        # Lengths ascend, so the tokens of a batch grow with its end: the last end that fits is searched.
        most = longest[start : start + min(tokens // longest[start], size or len(places))]
        end = start + max(least, int(np.searchsorted(most * np.arange(1, len(most) + 1), tokens, side="right")))
        if 0 < len(places) - end < least:  # the rest would be too small
            end = len(places) - least if len(places) - start >= 2 * least else len(places)
        yield places[start:end].tolist()
        start = end
