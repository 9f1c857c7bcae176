"""The base class of position schemes. A scheme may rotate queries and keys, and add to the scores or to the output.

It is the twin of `headwise.nn.positions.scheme`, for Keras tensors.
"""

from __future__ import annotations

from keras import ops

from headwise.errors import DtypeError, ShapeError
from headwise.keras.layer import Layer, Tensor
from headwise.masks import Mask
from headwise.nn.positions.scheme import check_fits


class Positions(Layer):
    """A position scheme without effect. A subclass overrides the methods that it needs.

    Position ids are integer tensors [S], one for all rows, or [B, S].

    Attributes:
        has_bias: whether a subclass overrides `bias`.
        uses_values: whether a subclass overrides `values`, which needs the weights.
    """

    has_bias: bool = False
    uses_values: bool = False

    def rotate(self, x: Tensor, position_ids: Tensor, length: Tensor | None = None) -> Tensor:
        """Rotate queries or keys x [B, H, S, D] by their positions. `length`: the number of tokens."""
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
        """Compute the bias to add to the scaled scores of q [B, H, …, r, D], float [1|B, H, …, r, c].

        In the shapes, … is nothing, or n blocks that are computed side by side. `query_ids` […, r] and `key_ids` […, c]
        are positions; they may have a first axis B: [B, …, r].

        `scale` is the attention's factor on q kᵀ, None = 1/√D. `mask` is used only to save memory: if it is given, each
        row of the bias may differ from the exact bias by a constant, which does not change the softmax. It is None if
        the ids are only some of all positions.
        """
        raise NotImplementedError

    def values(self, weights: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
        """Compute a term to add to the output, [B, H, Q, E], from the weights [B, H, Q, K]; ids are [S] or [B, S]."""
        raise NotImplementedError

    def check(self, num_heads: int, head_dim: int) -> None:
        """Raise ArgumentError unless this scheme fits a layer with these numbers of query heads and head dimensions.

        A scheme that has an attribute `num_heads` or `head_dim` fits only that number.
        """
        check_fits(self, num_heads, head_dim)


def check_integers(name: str, ids: Tensor) -> None:
    """Raise DtypeError unless `ids` is a tensor of integers."""
    if "int" not in str(getattr(ids, "dtype", "")):
        received = getattr(ids, "dtype", type(ids).__name__)
        raise DtypeError(f"{name}: expected an integer tensor [S] or [B, S]. Received: {name}={received}")


def check_ids(name: str, ids: Tensor, batch: int | None, length: int | None) -> None:
    """Raise an error unless `ids` is an integer tensor [length] or [batch, length] (or [1, length])."""
    check_integers(name, ids)
    shape = tuple(ids.shape)
    fits = len(shape) in (1, 2) and (length is None or shape[-1] in (None, length))
    if not fits or (len(shape) == 2 and batch is not None and shape[0] not in (None, 1, batch)):
        raise ShapeError(f"{name}: expected [{length}] or [{batch}, {length}]. Received: {name}.shape={shape}")


def placed(x: Tensor, ids: Tensor) -> Tensor:
    """Reshape position ids […, r] or [B, …, r] to int32 [1|B, 1, …, r], to broadcast with x [B, H, …, r, D]."""
    alike = len(ids.shape) == len(x.shape) - 3  # the same ids for all examples
    return ops.cast(ids[None, None] if alike else ops.expand_dims(ids, 1), "int32")


def distances(x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Compute key minus query position, int32 [1|B, 1, …, r, c]. Ids: […, r], […, c] or with B; x: [B, H, …, r, D]."""
    if len(x.shape) == 4:  # without blocks, the ids come from the user and must be checked
        check_ids("query_ids", query_ids, x.shape[0], x.shape[2])
        check_ids("key_ids", key_ids, x.shape[0], key_ids.shape[-1])
    return ops.expand_dims(placed(x, key_ids), -2) - ops.expand_dims(placed(x, query_ids), -1)
