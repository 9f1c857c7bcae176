"""The contrastive loss: distinguishes matching pairs from others, among all pairs of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def paired(texts_of_image: Tensor, texts: Tensor) -> Tensor:
    """Whether image and text match: bool [U, T].

    `texts_of_image` [U, n] has the numbers of each image's texts, `texts` [T, 1] the numbers of the T texts.
    """
    return (texts_of_image[:, None] == texts).any(-1)


def contrastive(scores: Tensor, belong: Tensor) -> Tensor:
    """The cross-entropy [rows] of each row, where all its matches are equally likely targets.

    Radford et al. 2021, figure 3, for one match per row; Khosla et al. 2020, equation 2, for several.

    Args:
        scores, belong: [rows, candidates]; True = belongs.
    """
    likely = belong / belong.sum(1, keepdim=True)
    return -(log_softmax(scores.float(), dim=1) * likely).sum(1)


def others(similarity: Tensor, belong: Tensor, rows: Tensor, *, draw: bool) -> tuple[Tensor, Tensor]:
    """For some rows: (the index of a candidate that does not match, int64; whether there is such a candidate, bool).

    Hard negatives (Li et al. 2021, section 3.2): drawn by their similarity, half of them evenly, since a sharp
    similarity would never draw most candidates; or, without `draw`, the most similar candidate.

    Args:
        similarity, belong: [rows, candidates]: the logits of the draw, and bool, True = match.
        rows: the numbers of the rows, int64.
        draw: whether to draw, by torch's own generator.
    """
    there = ~belong.all(1)
    choice = ~belong | ~there[:, None]  # if everything matches, any candidate: it will not be used
    likeness = similarity.float().masked_fill(~choice, float("-inf")).softmax(1)
    if not draw:
        return likeness.argmax(1)[rows], there[rows]
    even = choice / choice.sum(1, keepdim=True)
    return torch.multinomial((likeness + even)[rows], 1)[:, 0], there[rows]
