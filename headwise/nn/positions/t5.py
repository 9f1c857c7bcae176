"""T5's relative positions: a learned bias for each head and each bucket of distances."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError
from headwise.masks import Mask
from headwise.nn.options import check_known, positive, whole
from headwise.nn.positions.scheme import Positions, distances


class T5Buckets(Positions):
    """Relative positions: distances are sorted into buckets, each with its learned bias. Raffel et al. 2020 (T5), §2.1.

        bias[h, i, j] = table[bucket(j - i), h]

    Half of the buckets hold one distance each, the other buckets logarithmically more, up to `max_distance`; all larger
    distances share the last bucket. T5 uses no scale: give the attention module `scale=1.0`. The layers of a T5 stack
    share one table: give all of them the same object.

    Args:
        num_heads: H, the number of query heads.
        num_buckets: the number of buckets, which are the rows of the table.
        max_distance: the distance where the last bucket begins.
        bidirectional: True = half of the buckets for keys before the query, half for keys after the query (as in the
            encoder). False = all keys after the query are in bucket 0 (as in the decoder, whose mask hides them).
        std: the standard deviation of the normal distribution for the table. T5 uses 1/√M.

    The table is `relative_attention_bias.weight`, [num_buckets, H], as in Hugging Face.

    Raises:
        ArgumentError: a size that is not positive, an odd number of buckets if bidirectional, a max_distance within the
            buckets of one distance.
    """

    def __init__(
        self,
        num_heads: int,
        num_buckets: int = 32,
        max_distance: int = 128,
        bidirectional: bool = True,
        *,
        std: float = 0.02,
    ) -> None:
        super().__init__()
        self.num_heads = whole("num_heads", num_heads)
        check_known("bidirectional", bidirectional, (False, True))
        self.bidirectional = bidirectional
        self.num_buckets = whole("num_buckets", num_buckets, least=4 if bidirectional else 2)
        if bidirectional and num_buckets % 2:
            raise ArgumentError(
                f"num_buckets: expected an even number with bidirectional=True. Received: num_buckets={num_buckets}"
            )
        self.max_distance = whole("max_distance", max_distance)
        if max_distance <= self._exact:
            raise ArgumentError(
                f"max_distance: expected more than {self._exact}, because smaller distances have a bucket each. "
                f"Received: max_distance={max_distance}"
            )
        self.std = positive("std", std)
        self.relative_attention_bias = nn.Embedding(num_buckets, num_heads)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table again, from N(0, std²)."""
        nn.init.normal_(self.relative_attention_bias.weight, std=self.std)

    def bias(
        self,
        q_BHQD: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias, [B, H, Q, K] in the table's dtype; [1, H, Q, K] if all rows have the same positions."""
        apart = distances(q_BHQD, query_ids, key_ids)[:, 0]
        return self.relative_attention_bias(self.buckets(apart)).permute(0, 3, 1, 2)

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance j - i (key minus query): int64 of the same shape, 0 … num_buckets - 1."""
        after = distance > 0
        distance = distance.abs() if self.bidirectional else (-distance).clamp(min=0)
        # The order of these float32 operations is Hugging Face's: it decides where a bucket ends.
        far = self._exact + (
            torch.log(distance.clamp(min=self._exact).float() / self._exact)
            / math.log(self.max_distance / self._exact)
            * (self._per_side - self._exact)
        ).long().clamp(max=self._per_side - 1 - self._exact)
        bucket = torch.where(distance < self._exact, distance, far)
        return bucket + after.long() * self._per_side if self.bidirectional else bucket

    def extra_repr(self) -> str:
        return (
            f"{self.num_heads}, num_buckets={self.num_buckets}, max_distance={self.max_distance}, "
            f"bidirectional={self.bidirectional}"
        )

    @property
    def _per_side(self) -> int:
        return self.num_buckets // 2 if self.bidirectional else self.num_buckets

    @property
    def _exact(self) -> int:
        """The number of distances (on each side, if bidirectional) that have a bucket of their own."""
        return self._per_side // 2
