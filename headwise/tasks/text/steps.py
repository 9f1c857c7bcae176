"""Common to all ways of generating text: how tokens are chosen, the next step of a model, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from headwise.errors import ArgumentError


@dataclass(frozen=True)
class Decoding:
    """How the tokens of a text are chosen.

    Args:
        begin, end: the ids of the special tokens before and after a text.
        never: ids that are never chosen, such as padding.
        beams: the number of hypotheses that are followed side by side; 1 = greedy: always the likeliest token.
        length_penalty: the α of `searches.Searching`.
        no_repeat: no sequence of this many tokens is generated twice in a text (Paulus et al. 2018, section 2.5); 0 =
            no limit.
        sample: draw each token by its probability, instead of taking the likeliest.
        temperature, top_k, top_p: as for `searches.drawn`.
        seed: the seed of the draws.

    Raises:
        ArgumentError: a value out of range, or beams together with sampling.
    """

    begin: int
    end: int
    never: Sequence[int] = ()
    beams: int = 1
    length_penalty: float = 0.6
    no_repeat: int = 0
    sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.beams < 1:
            raise ArgumentError(f"beams: expected at least 1. Received: {self.beams}")
        if self.length_penalty < 0:
            raise ArgumentError(f"length_penalty: expected at least 0. Received: {self.length_penalty}")
        if self.no_repeat < 0:
            raise ArgumentError(f"no_repeat: expected at least 0 (0 = repeats are allowed). Received: {self.no_repeat}")
        if self.sample and self.beams > 1:
            raise ArgumentError(f"beams: expected 1 with sample. Received: {self.beams}. Choose one of the two")
        if self.temperature <= 0:
            raise ArgumentError(f"temperature: expected a number above 0. Received: {self.temperature}")
        if self.top_k < 0:
            raise ArgumentError(f"top_k: expected at least 0 (0 = all tokens). Received: {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p: expected a number above 0, at most 1. Received: {self.top_p}")


@dataclass(frozen=True)
class Written:
    """The text that a model generated for one source.

    Args:
        ids: the ids, without the special tokens that begin and end a text.
        log_probability: the log-probability of these tokens and the end token, without temperature, `top_k` and
            `top_p`.
        score: the score by which a beam search ranks this text; without beams, the log-probability.
        is_finished: whether the model ended the text itself, not the limit.
    """

    ids: list[int]
    log_probability: float
    score: float
    is_finished: bool


class Steps(Protocol):
    """A model that reads one more token in each row of its batch, at each call."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Read the tokens `ids` [rows]. Returns the logits [rows, V] of the next token, after all tokens so far."""

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        """Let row i continue from the tokens of row order[i]. `same_sources`: each row keeps the source that it has."""


def log_probabilities(logits: Tensor, never: Sequence[int]) -> Tensor:
    """Compute log softmax over the tokens, in float32 or better. The tokens in `never` are left out and get -inf."""
    logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if len(never):
        logits = logits.index_fill(-1, torch.tensor(never, device=logits.device), float("-inf"))
    return logits.log_softmax(-1)


def without_repeats(log_p_RV: Tensor, written_Rt: Tensor, size: int, lengths_R: Tensor) -> Tensor:
    """Set log p to -inf for each token that would repeat a sequence of `size` tokens of its row; size 0 = no limit.

    Of each row of `written_Rt` the first `lengths_R` tokens are real; the rest is padding.
    """
    length = written_Rt.shape[1]
    if size == 0 or length < size:
        return log_p_RV
    runs_Rns = written_Rt.unfold(1, size, 1)
    places_Rs = lengths_R[:, None] + torch.arange(1 - size, 0, device=lengths_R.device)
    last_Rs = written_Rt.gather(1, places_Rs.clamp(min=0))
    is_again_Rn = (runs_Rns[..., :-1] == last_Rs[:, None]).all(-1)
    is_again_Rn &= torch.arange(size, length + 1, device=lengths_R.device) <= lengths_R[:, None]
    again_RV = torch.zeros_like(log_p_RV).scatter_add(-1, runs_Rns[..., -1], is_again_Rn.to(log_p_RV.dtype))
    return log_p_RV.masked_fill(again_RV > 0, -torch.inf)
