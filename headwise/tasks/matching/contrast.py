"""Telling what belongs together from what does not, among all pairs that a batch can make."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def paired(texts_of_image: Tensor, texts: Tensor) -> Tensor:
    """Which image has which text, bool [U, T], from the numbers of each image's texts [U, n] and of texts [T, 1]."""
    return (texts_of_image[:, None] == texts).any(-1)


def contrastive(scores: Tensor, belong: Tensor) -> Tensor:
    """The cross-entropy of each row, [rows], with all that belong to it equally likely.

    Radford et al. 2021, figure 3, where one belongs to each; Khosla et al. 2020, equation 2, where several do.

    Args:
        scores, belong: [rows, candidates]; True = belongs.
    """
    likely = belong / belong.sum(1, keepdim=True)
    return -(log_softmax(scores.float(), dim=1) * likely).sum(1)


def others(similarity: Tensor, belong: Tensor, rows: Tensor, *, draw: bool) -> tuple[Tensor, Tensor]:
    """For some rows the place of something that does not belong to each, int64, and whether there is any, bool.

    Hard negatives (Li et al. 2021, section 3.2): drawn by their similarity, half of them evenly, since a sharp
    similarity would never draw most of them; or, to be the same every time, the likest.

    Args:
        similarity, belong: [rows, candidates]; what softmax makes a choice of, and True = belongs.
        rows: int64, which rows.
        draw: by torch's own generator.
    """
    there = ~belong.all(1)
    choice = ~belong | ~there[:, None]  # where everything belongs, anything: it will not be looked at
    likeness = similarity.float().masked_fill(~choice, float("-inf")).softmax(1)
    if not draw:
        return likeness.argmax(1)[rows], there[rows]
    even = choice / choice.sum(1, keepdim=True)
    return torch.multinomial((likeness + even)[rows], 1)[:, 0], there[rows]
