"""T5's relative positions: a learned bias for each head and each bucket of distances."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import torch
from keras import ops

from headwise.keras.layer import Parts, Tensor
from headwise.keras.positions.scheme import Positions, distances
from headwise.keras.saving import PACKAGE
from headwise.masks import Mask
from headwise.nn import positions as torch_positions


@keras.saving.register_keras_serializable(PACKAGE)
class T5Buckets(Positions, twin=torch_positions.T5Buckets):
    """Relative positions: distances are sorted into buckets, each with its learned bias. Raffel et al. 2020 (T5), §2.1.

    See `headwise.nn.positions.T5Buckets`.

        bias[h, i, j] = table[bucket(j - i), h]

    T5 uses no scale: give the attention layer `scale=1.0`. The layers of a T5 stack share one table: give all of them
    the same object.

    Args: as of `headwise.nn.positions.T5Buckets`.

    The table is `relative_attention_bias.embeddings`, [num_buckets, H].

    Raises:
        ArgumentError: a size that is not positive, an odd number of buckets if bidirectional, a max_distance within the
            buckets of one distance.
    """

    has_bias = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        with torch.device("meta"):  # the twin has no weights; it checks the options and computes the buckets
            twin = torch_positions.T5Buckets(**vars(o))
        self.num_heads, self.num_buckets = twin.num_heads, twin.num_buckets
        self.max_distance, self.bidirectional, self.std = twin.max_distance, twin.bidirectional, twin.std
        # The bucket of each clipped distance, computed by torch: backends differ in the last digit of the logarithm.
        known = torch.arange(-self.max_distance, self.max_distance + 1, device="cpu")
        self._buckets = twin.buckets(known).numpy().astype(np.int32)
        self.relative_attention_bias = keras.layers.Embedding(
            *(self.num_buckets, self.num_heads),
            embeddings_initializer=keras.initializers.RandomNormal(stddev=self.std),
            name="relative_attention_bias",
            dtype=self.variable_dtype,  # the result is added to scores, which are float32 also under mixed precision
        )

    def _parts(self) -> Parts:
        return [(self.relative_attention_bias, None)]

    def bias(
        self,
        q: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias (see `Positions.bias`), in the table's dtype; B is 1 if all rows have the same positions."""
        found = self.relative_attention_bias(self.buckets(distances(q, query_ids, key_ids)[:, 0]))
        return ops.moveaxis(found, -1, 1)

    def buckets(self, distance: Tensor) -> Tensor:
        """Return the bucket of each distance j - i (key minus query): int32 of the same shape, 0 … num_buckets - 1."""
        far = self.max_distance
        return ops.take(ops.convert_to_tensor(self._buckets), ops.clip(distance, -far, far) + far)
