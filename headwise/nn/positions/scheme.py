"""The interface of position schemes. A scheme may rotate queries and keys, and add to the scores or to the output.

Positions are those of tokens, 0, 1, 2 …: with a cache, the positions of queries continue after those in the cache; with
left padding, each row counts its own tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.masks import Mask


class Positions(nn.Module):
    """A position scheme that does nothing. A subclass overrides the methods that it needs.

    Position ids are integer tensors [S], one for all rows, or [B, S].

    Attributes:
        depends_on_length: whether `rotate` needs `length`; then a cache keeps keys before rotation.
        uses_values: whether `values` is overridden; it needs the weights.
    """

    depends_on_length: bool = False
    uses_values: bool = False

    def rotate(self, x_BHSD: Tensor, position_ids: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Queries or keys [B, H, S, D] for the scores: rotated to their positions. `length`: tokens seen so far."""
        return x_BHSD

    def bias(
        self,
        q_BHQD: Tensor,
        query_ids: Tensor,
        key_ids: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        scale: float | None = None,
    ) -> Tensor | None:
        """The bias added to the scaled scores: float, broadcasts to [B, H, Q, K]; None = nothing.

        `scale` is the attention's factor on q kᵀ, None = 1/√D. `mask` (True = may attend) is only used to save
        memory: rows may then differ by a constant, which does not change the softmax. The caller must apply the same
            mask.
        """
        return None

    def slopes_of_heads(self) -> Tensor | None:
        """[H], if the bias is the option `slopes` of `attention` for consecutive tokens; else None."""
        return None

    def values(self, weights_BHQK: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor | None:
        """The term added to the output, [B, H, Q, E]; None = nothing."""
        return None

    def reset_parameters(self) -> None:
        """Initialise the parameters again, for schemes that learn."""

    def check(self, num_heads: int, head_dim: int) -> None:
        """Raise ArgumentError unless this scheme fits a module with these query heads and head dimensions.

        A scheme with an attribute `num_heads` or `head_dim` is made for that number.
        """
        check_fits(self, num_heads, head_dim)

    def _constants(self) -> dict[str, Tensor]:
        """Float32 tensors on the CPU that depend only on the options, by the name of their attribute."""
        return {}

    def _register_constants(self) -> None:
        device = torch.get_default_device()
        for name, constant in self._constants().items():
            self.register_buffer(name, constant.to(device), persistent=False)

    def _apply(self, fn, recurse=True):  # type: ignore[no-untyped-def]  # as in nn.Module
        # .half() and .to(bfloat16) would also round the constants, and phases from rounded frequencies are wrong by
        # whole turns at far positions. So they are made anew, in float32, on the device to which they were moved.
        super()._apply(fn, recurse)
        for name, constant in self._constants().items():
            setattr(self, name, constant.to(getattr(self, name).device))
        return self


def check_integers(name: str, ids: Tensor, shape: str = "[S] or [B, S]") -> None:
    """Raise DtypeError unless `ids` is a tensor of integers."""
    if not isinstance(ids, Tensor) or ids.is_floating_point() or ids.dtype == torch.bool:
        received = ids.dtype if isinstance(ids, Tensor) else type(ids).__name__
        raise DtypeError(f"{name}: expected an integer tensor {shape}. Received: {name}={received}")


def check_ids(name: str, ids: Tensor, batch: int, length: int) -> None:
    """Raise unless `ids` is an integer tensor [S] or [B, S] (B may be 1)."""
    check_integers(name, ids)
    if ids.ndim not in (1, 2) or ids.shape[-1] != length or (ids.ndim == 2 and ids.shape[0] not in (1, batch)):
        raise ShapeError(f"{name}: expected [{length}] or [{batch}, {length}]. Received: {name}={list(ids.shape)}")


def distances(x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Key minus query, [1|B, 1, Q, K], of ids [S] or [B, S], which are checked; x [B, H, Q, ·] has the queries."""
    check_ids("query_ids", query_ids, x.shape[0], x.shape[2])
    check_ids("key_ids", key_ids, x.shape[0], key_ids.shape[-1])
    keys = key_ids[..., None, :] - query_ids[..., :, None]
    return keys[None, None] if keys.ndim == 2 else keys[:, None]


def check_fits(scheme: object, num_heads: int, head_dim: int) -> None:
    """`Positions.check`, for a scheme in Keras too."""
    for name, received in (("num_heads", num_heads), ("head_dim", head_dim)):
        made_for = getattr(scheme, name, received)
        if made_for != received:
            raise ArgumentError(f"positions: expected a module with {name}={made_for}. Received: {name}={received}")
