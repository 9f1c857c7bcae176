"""The contrastive loss, which makes matching pairs more similar than all other pairs of a batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import log_softmax


def paired(texts_of_image: Tensor, texts: Tensor) -> Tensor:
    """Return for each image and each text whether they match: bool [U, T].

    `texts_of_image` [U, n] has the numbers of each image's texts, `texts` [T, 1] the numbers of the T texts.
    """
    return (texts_of_image[:, None] == texts).any(-1)


def contrastive(scores: Tensor, belong: Tensor) -> Tensor:
    """Compute for each row [rows] the cross-entropy over its candidates, where all matches are equally likely targets.

    Radford et al. 2021, figure 3, for one match per row; Khosla et al. 2020, equation 2, for several.

    Args:
        scores: logits [rows, candidates]. belong: bool [rows, candidates], True = the candidate matches the row.
    """
    likely = belong / belong.sum(1, keepdim=True)
    return -(log_softmax(scores.float(), dim=1) * likely).sum(1)


def others(similarity: Tensor, belong: Tensor, rows: Tensor, *, draw: bool) -> tuple[Tensor, Tensor]:
    """Choose a non-matching candidate for each of some rows. Returns (its index, int64; whether there is one, bool).

    These are hard negatives (Li et al. 2021, section 3.2). With `draw`, one half is drawn in proportion to the softmax
    of the similarity, and the other half evenly, because a sharp similarity would never draw most candidates. Without
    `draw`, it is the most similar candidate.

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
