"""Finds the most probable answer to a question among the spans (ranges of tokens) of all its windows."""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor

_KEPT = 20  # number of spans kept for each window


class BestSpans:
    """Collects the windows of one question one by one; then gives the best span, and its probability.

    Within a window the probabilities of the first and the last token are independent; if both are [CLS], there is no
    answer. All spans of all windows are compared; a span that occurs in two windows has the sum of both weights.
    Whether there is an answer is decided by the window that most certainly has one, because most windows do not contain
    it (Devlin et al. 2018, section 4.3, for several windows).

    Args:
        may_be_none: whether "no answer" may be the best.
    """

    def __init__(self, may_be_none: bool) -> None:
        self._may_be_none = may_be_none
        self._weights: defaultdict[tuple[int, int], float] = defaultdict(float)
        self._total = 0.0
        self._none = 1.0

    def add(self, starts_S: Tensor, ends_S: Tensor, none: float, offsets: list[tuple[int, int]], longest: int) -> None:
        """Add a window.

        Args:
            starts_S, ends_S: [S] the log-probabilities of the context's tokens as first and as last token.
            none: the log-probability that the window has no answer.
            offsets: the offsets of these tokens in the context: context[start:end].
            longest: the largest number of tokens in an answer.
        """
        self._none = min(self._none, float(torch.tensor(none).exp()))
        length = len(starts_S)
        if not length:
            return
        lengths_SS = (
            torch.arange(length, device=starts_S.device) - torch.arange(length, device=starts_S.device)[:, None]
        )
        weights_SS = (starts_S[:, None] + ends_S).double().exp()
        weights_SS = weights_SS.masked_fill((lengths_SS < 0) | (lengths_SS >= longest), 0.0)
        self._total += float(weights_SS.sum())
        weights, places = weights_SS.flatten().topk(min(_KEPT, length * length))
        for weight, place in zip(weights.tolist(), places.tolist(), strict=True):
            first, last = divmod(place, length)
            if first <= last:
                self._weights[offsets[first][0], offsets[last][1]] += weight

    def best(self) -> tuple[tuple[int, int], float]:
        """Return ((start, end) of the best span in the context, its probability). The span (0, 0) means no answer."""
        none = self._none if self._may_be_none else 0.0
        span, weight = max(self._weights.items(), key=lambda item: item[1], default=((0, 0), 0.0))
        if (self._may_be_none and none >= weight) or not self._total:
            return (0, 0), none / (none + self._total) if none + self._total else 0.0
        return span, weight / (none + self._total)
