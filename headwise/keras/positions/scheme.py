"""What a position scheme is to an attention layer: it may rotate queries and keys, add a bias to the scores, and add to
the output. The same as `headwise.nn.positions.scheme` among Keras tensors.
"""

from __future__ import annotations

import keras
from keras import ops

from headwise.errors import DtypeError, ShapeError
from headwise.keras.layer import Layer, Tensor
from headwise.masks import Mask
from headwise.nn.positions.scheme import check_fits

__all__ = ["Positions", "check_fits", "check_ids", "distances", "placed", "precision"]


class Positions(Layer):
    """A position scheme. This one does nothing: a scheme overrides what it does.

    Position ids are integer tensors [S], one for all rows, or [B, S].

    Attributes:
        has_bias: `bias` gives something.
        uses_values: `values` gives something, for which the weights must be made.
    """

    has_bias: bool = False
    uses_values: bool = False

    def rotate(self, x: Tensor, position_ids: Tensor, length: Tensor | None = None) -> Tensor:
        """Queries or keys [B, H, S, D] for the scores: rotated to their positions. `length`: tokens there are."""
        return x

    def bias(
        self,
        q: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | None = None,
        scale: float | None = None,
    ) -> Tensor:
        """What is added to the scaled scores of q [B, H, …, r, D] at query_ids and key_ids, […, r] and […, c]: float
        [1|B, H, …, r, c], where … is nothing or n blocks. Ids may have a leading B, [B, …, r].

        `scale` is the attention's factor on q kᵀ, None = 1/√D. `mask` is only looked at to save memory: rows may then
        differ by a constant, which the softmax does not see. It is None where the ids are not all there are.
        """
        raise NotImplementedError

    def values(self, weights: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """What is added to the output, [B, H, Q, E]; weights [B, H, Q, K], ids [S] or [B, S]."""
        raise NotImplementedError

    def check(self, num_heads: int, head_dim: int) -> None:
        """Raise ArgumentError unless this scheme fits a layer of so many query heads of so many dimensions."""

    def build(self, input_shape: object = None) -> None:
        """Make the weights, whose shapes follow from the options alone."""
        self.built = True


def check_ids(name: str, ids: Tensor, batch: int | None, length: int | None) -> None:
    """Raise unless `ids` is an integer tensor [S] or [B, S] (B may be 1)."""
    if "int" not in str(ids.dtype):
        raise DtypeError(f"{name}: expected an integer tensor [S] or [B, S]. Received: dtype={ids.dtype}")
    shape = tuple(ids.shape)
    fits = len(shape) in (1, 2) and (length is None or shape[-1] in (None, length))
    if not fits or (len(shape) == 2 and batch is not None and shape[0] not in (None, 1, batch)):
        raise ShapeError(f"{name}: expected [{length}] or [{batch}, {length}]. Received: {name}.shape={shape}")


def placed(x: Tensor, ids: Tensor) -> Tensor:
    """Ids […, r] or [B, …, r] as int32 [1|B, 1, …, r], to meet x [B, H, …, r, D]: as many of … as x has."""
    alike = len(ids.shape) == len(x.shape) - 3  # one for all examples
    return ops.cast(ids[None, None] if alike else ops.expand_dims(ids, 1), "int32")


def distances(x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Key minus query, int32 [1|B, 1, …, r, c], of ids […, r] and […, c] (or B before them), for x [B, H, …, r, D]."""
    if len(x.shape) == 4:  # no blocks: the ids are as a caller gave them
        check_ids("query_ids", query_ids, x.shape[0], x.shape[2])
        check_ids("key_ids", key_ids, x.shape[0], key_ids.shape[-1])
    return ops.expand_dims(placed(x, key_ids), -2) - ops.expand_dims(placed(x, query_ids), -1)


def precision(x: Tensor) -> str:
    """The dtype in which something is computed that is added to scores: float32, float64 for float64 x."""
    return "float64" if keras.backend.standardize_dtype(x.dtype) == "float64" else "float32"
