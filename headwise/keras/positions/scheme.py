"""The interface of position schemes. A scheme may rotate queries and keys, and add to the scores or to the output.

It is `headwise.nn.positions.scheme` for Keras tensors.
"""

from __future__ import annotations

from keras import ops

from headwise.errors import DtypeError, ShapeError
from headwise.keras.layer import Layer, Tensor
from headwise.masks import Mask
from headwise.nn.positions.scheme import check_fits


class Positions(Layer):
    """A position scheme that does nothing. A subclass overrides the methods that it needs.

    Position ids are integer tensors [S], one for all rows, or [B, S].

    Attributes:
        has_bias: whether `bias` is overridden.
        uses_values: whether `values` is overridden; it needs the weights.
    """

    has_bias: bool = False
    uses_values: bool = False

    def rotate(self, x: Tensor, position_ids: Tensor, length: Tensor | None = None) -> Tensor:
        """Queries or keys [B, H, S, D] for the scores: rotated to their positions. `length`: number of tokens."""
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
        """The bias of the scaled scores of q [B, H, …, r, D] at query_ids and key_ids, […, r] and […, c].

        It is float [1|B, H, …, r, c], where … is nothing or n blocks. Ids may have a leading B, [B, …, r].

        `scale` is the attention's factor on q kᵀ, None = 1/√D. `mask` is only used to save memory: rows may then
        differ by a constant, which does not change the softmax. It is None if the ids are only a part.
        """
        raise NotImplementedError

    def values(self, weights: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """The tensor that is added to the output, [B, H, Q, E]; weights [B, H, Q, K], ids [S] or [B, S]."""
        raise NotImplementedError

    def check(self, num_heads: int, head_dim: int) -> None:
        """Raise ArgumentError unless this scheme fits a layer with these query heads and head dimensions.

        A scheme with an attribute `num_heads` or `head_dim` is made for that number.
        """
        check_fits(self, num_heads, head_dim)


def check_integers(name: str, ids: Tensor) -> None:
    """Raise DtypeError unless `ids` is a tensor of integers."""
    if "int" not in str(getattr(ids, "dtype", "")):
        received = getattr(ids, "dtype", type(ids).__name__)
        raise DtypeError(f"{name}: expected an integer tensor [S] or [B, S]. Received: {name}={received}")


def check_ids(name: str, ids: Tensor, batch: int | None, length: int | None) -> None:
    """Raise unless `ids` is an integer tensor [S] or [B, S] (B may be 1)."""
    check_integers(name, ids)
    shape = tuple(ids.shape)
    fits = len(shape) in (1, 2) and (length is None or shape[-1] in (None, length))
    if not fits or (len(shape) == 2 and batch is not None and shape[0] not in (None, 1, batch)):
        raise ShapeError(f"{name}: expected [{length}] or [{batch}, {length}]. Received: {name}.shape={shape}")


def placed(x: Tensor, ids: Tensor) -> Tensor:
    """Ids […, r] or [B, …, r] as int32 [1|B, 1, …, r], for x [B, H, …, r, D]: with the same … as x."""
    alike = len(ids.shape) == len(x.shape) - 3  # one for all examples
    return ops.cast(ids[None, None] if alike else ops.expand_dims(ids, 1), "int32")


def distances(x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Key minus query, int32 [1|B, 1, …, r, c], of ids […, r] and […, c] (or B before them), for x [B, H, …, r, D]."""
    if len(x.shape) == 4:  # no blocks: the ids of the caller
        check_ids("query_ids", query_ids, x.shape[0], x.shape[2])
        check_ids("key_ids", key_ids, x.shape[0], key_ids.shape[-1])
    return ops.expand_dims(placed(x, key_ids), -2) - ops.expand_dims(placed(x, query_ids), -1)
