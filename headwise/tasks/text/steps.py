"""What every way of writing a text needs: the model's next step, what it wrote, and what is certain already."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Written:
    """What a model wrote for one source.

    Args:
        ids: without the signs that begin and end a text.
        log_probability: of these tokens and of the end after them, by the model: neither temperature nor cuts in it.
        score: that, as a beam search ranks it; else the same.
        is_finished: whether the model ended the text itself, not the limit.
    """

    ids: list[int]
    log_probability: float
    score: float
    is_finished: bool


class Steps(Protocol):
    """A model that reads one more token in each of its rows."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Logits [rows, V] of what follows after the tokens `ids` [rows] (and all before them)."""

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        """Row i goes on from what row order[i] has read; `same_sources`: each row's source is that of its place now."""


# What of each source's tokens is certain already, asked after every step; and at last what was written for each.
Certain = Callable[[int], list[int]]
Search = Generator[Certain, None, list[Written]]


def finished(search: Search) -> list[Written]:
    """What a search finds."""
    found: list[Written] = []
    for _ in _kept(search, found):
        pass
    return found


def followed(search: Search) -> Iterator[list[int]]:
    """What is certain of the only source of a search, after each step; the last time whole."""
    found: list[Written] = []
    for certain in _kept(search, found):
        yield list(certain(0))  # which grows
    yield found[0].ids


def _kept(search: Search, found: list[Written]) -> Iterator[Certain]:
    found += yield from search


def log_probabilities(logits: Tensor, never: Sequence[int]) -> Tensor:
    """log softmax in float32 or better, of all tokens but those that are never chosen."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if len(never):
        logits = logits.index_fill(-1, torch.tensor(never, device=logits.device), float("-inf"))
    return logits.log_softmax(-1)


def without_repeats(log_p_RV: Tensor, written_Rt: Tensor, size: int) -> Tensor:
    """log p with -inf for each token that would end a run of `size` tokens that a row has already; 0 = for none."""
    length = written_Rt.shape[1]
    if size == 0 or length < size:
        return log_p_RV
    runs_Rns = written_Rt.unfold(1, size, 1)
    last_Rs = written_Rt[:, length - size + 1 :]
    is_again_Rn = (runs_Rns[..., :-1] == last_Rs[:, None]).all(-1)
    again_RV = torch.zeros_like(log_p_RV).scatter_add(-1, runs_Rns[..., -1], is_again_Rn.to(log_p_RV.dtype))
    return log_p_RV.masked_fill(again_RV > 0, -torch.inf)
