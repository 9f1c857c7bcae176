"""Retrieval of texts for images, or images for texts: orders the candidates, and scores this order."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

DEPTHS = (1, 5, 10)  # k of recall@k


def best_first(similarity_QN: Tensor, score: Callable[[Tensor, Tensor], Tensor], rerank: int, depth: int) -> Tensor:
    """Return the indices of the best candidates of each query, best first: int64 [Q, depth], or [Q, N] if N is smaller.

    All candidates are sorted by similarity; then the first `rerank` of them are sorted again by a costlier score (Li et
    al. 2021, section 4.2).

    Args:
        similarity_QN: the similarity of every query with every candidate.
        score: (queries, candidates), int64 [P] each -> the score of each pair [P].
        rerank: the number of candidates that are sorted by `score`; 0 = none.
        depth: the number of candidates to return.
    """
    count = similarity_QN.shape[1]
    order = similarity_QN.topk(min(max(rerank, depth), count), dim=1).indices
    first = min(rerank, count)
    if first > 1:
        queries = torch.arange(len(order)).repeat_interleave(first)
        scores = score(queries, order[:, :first].flatten()).view(-1, first)
        again = scores.argsort(dim=1, descending=True, stable=True)
        order[:, :first] = order[:, :first].gather(1, again)
    return order[:, :depth]


def recall(order_QK: Tensor, right_QN: Tensor, depth: int) -> float:
    """Compute recall@depth: the fraction of queries with a right candidate among their first `depth` candidates."""
    return float(right_QN.gather(1, order_QK[:, :depth]).any(1).float().mean())


def recall_by_chance(right_QN: Tensor, depth: int) -> float:
    """Compute the recall@depth that is expected if candidates are in a random order.

    Of N candidates r are right: 1 - C(N - r, depth) / C(N, depth).
    """
    count = right_QN.shape[1]
    drawn = min(depth, count)
    rights = right_QN.sum(1).tolist()
    return sum(1 - math.comb(count - r, drawn) / math.comb(count, drawn) for r in rights) / len(rights)
