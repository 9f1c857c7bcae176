"""Shaw's relative positions: a learned vector for each distance, added to the keys and, as an option, the values."""

from __future__ import annotations

from typing import Any

import keras
import torch
from keras import ops

from headwise.keras.call import precision
from headwise.keras.layer import Parts, Tensor
from headwise.keras.positions.scheme import Positions, distances
from headwise.keras.saving import PACKAGE
from headwise.masks import Mask
from headwise.nn import positions as torch_positions


@keras.saving.register_keras_serializable(PACKAGE)
class ShawRelative(Positions, twin=torch_positions.ShawRelative):
    """Relative position representations. Shaw et al. 2018, equations 3-5. See `headwise.nn.positions.ShawRelative`.

        e_ij = scale · q_i · (k_j + a^K_(clip(j - i))),     z_i = Σ_j α_ij (v_j + a^V_(clip(j - i)))

    `bias` returns scale · q_i · a^K, `values` returns Σ_j α_ij a^V. No tensor [Q, K, D] is needed: queries are
    multiplied with the table, and weights are summed for each distance.

    Args: as of `headwise.nn.positions.ShawRelative`.

    The tables are `distance_embedding.embeddings` [left + right + 1, D] and `value_embedding.embeddings` [.., E], in
    the order of distances -left … right.

    Raises:
        ArgumentError: a size that is not positive.
    """

    has_bias = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        o = self._begin(*args, **kwargs)
        if isinstance(o.max_distance, list):  # of a config
            o.max_distance = tuple(o.max_distance)
        with torch.device("meta"):  # the twin has no weights; it only checks the options
            twin = torch_positions.ShawRelative(**vars(o))
        self.head_dim, self.value_dim = twin.head_dim, twin.value_dim
        self.left, self.right = twin.left, twin.right
        self.uses_values = twin.uses_values
        self.distance_embedding = self._table("distance_embedding", self.head_dim)
        self.value_embedding = self._table("value_embedding", self.value_dim) if self.uses_values else None

    def _parts(self) -> Parts:
        return [(self.distance_embedding, None), (self.value_embedding, None)]

    def bias(
        self,
        q: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """Compute the bias scale · q_i · a^K_(clip(j - i)) (see `Positions.bias`); float32, float64 for float64 q."""
        rows = self._rows(q, query_ids, key_ids)
        table = ops.cast(self.distance_embedding(self._all), precision(q))
        by_distance = ops.matmul(ops.cast(q, precision(q)), ops.transpose(table))
        return ops.take_along_axis(by_distance * (self.head_dim**-0.5 if scale is None else scale), rows, axis=-1)

    def values(self, weights: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """Compute Σ_j α_ij a^V_(clip(j - i)): [B, H, Q, E] in the weights' dtype, summed in float32."""
        assert self.value_embedding is not None
        count = self.left + self.right + 1
        b, h, q_len, _ = ops.shape(weights)
        starts = ops.reshape(ops.arange(b * h * q_len, dtype="int32") * count, (b, h, q_len, 1))
        cells = starts + self._rows(weights, query_ids, key_ids)  # a row of `count` sums for each query
        flat = ops.reshape(ops.cast(weights, precision(weights)), (-1,))
        sums = ops.segment_sum(flat, ops.reshape(cells, (-1,)), num_segments=b * h * q_len * count)
        table = ops.cast(self.value_embedding(self._all), sums.dtype)
        return ops.cast(ops.matmul(ops.reshape(sums, (b, h, q_len, count)), table), weights.dtype)

    @property
    def _all(self) -> Tensor:
        """Return the indices of all rows of the tables."""
        return ops.arange(self.left + self.right + 1, dtype="int32")

    def _rows(self, x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """Return which row of the tables each pair of query and key uses, [1|B, 1, …, r, c]."""
        return ops.clip(distances(x, query_ids, key_ids), -self.left, self.right) + self.left

    def _table(self, name: str, width: int) -> keras.layers.Embedding:
        """Make a table with a vector for each distance; Glorot's initialisation, as in the authors' tensor2tensor."""
        drawn = keras.initializers.GlorotUniform()
        count = self.left + self.right + 1
        # Not the compute dtype, because the result is added to scores, which are float32 under mixed precision too.
        return keras.layers.Embedding(count, width, embeddings_initializer=drawn, name=name, dtype=self.variable_dtype)
