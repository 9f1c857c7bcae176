"""The base class of position schemes. A scheme may rotate queries and keys, and add to the scores or to the output.

Tokens have the positions 0, 1, 2 …: with a cache, the positions of queries continue after the tokens in the cache; with
left padding, each row counts only its real tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from headwise.errors import ArgumentError, DtypeError, ShapeError
from headwise.masks import Mask


class Positions(nn.Module):
    """A position scheme without effect. A subclass overrides the methods that it needs.

    Position ids are integer tensors [S], one for all rows, or [B, S].

    Attributes:
        depends_on_length: whether `rotate` needs `length`; then a cache keeps keys before rotation.
        uses_values: whether a subclass overrides `values`, which needs the weights.
    """

    depends_on_length: bool = False
    uses_values: bool = False

    def rotate(self, x_BHSD: Tensor, position_ids: Tensor, length: int | Tensor | None = None) -> Tensor:
        """Rotate queries or keys x [B, H, S, D] by their positions. `length`: the number of tokens seen so far."""
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
        """Compute the bias to add to the scaled scores: float, broadcasts to [B, H, Q, K]; None = no bias.

        `scale` is the attention's factor on q kᵀ, None = 1/√D. `mask` (True = may attend) is used only to save memory:
        if it is given, each row of the bias may differ from the exact bias by a constant, which does not change the
        softmax. The caller must apply the mask itself.
        """
        return None

    def slopes_of_heads(self) -> Tensor | None:
        """Return slopes [H] with which `attention(slopes=)` adds the same bias to consecutive tokens; None if none."""
        return None

    def values(self, weights_BHQK: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor | None:
        """Compute a term to add to the output, [B, H, Q, E], from the attention weights; None = no term."""
        return None

    def reset_parameters(self) -> None:
        """Initialise the parameters again, in schemes that have parameters."""

    def check(self, num_heads: int, head_dim: int) -> None:
        """Raise ArgumentError unless this scheme fits a module with these numbers of query heads and head dimensions.

        A scheme that has an attribute `num_heads` or `head_dim` fits only that number.
        """
        check_fits(self, num_heads, head_dim)

    def _constants(self) -> dict[str, Tensor]:
        """Compute the tensors that depend only on the options, float32 on the CPU, by the name of their attribute."""
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
    """Raise an error unless `ids` is an integer tensor [length] or [batch, length] (or [1, length])."""
    check_integers(name, ids)
    if ids.ndim not in (1, 2) or ids.shape[-1] != length or (ids.ndim == 2 and ids.shape[0] not in (1, batch)):
        raise ShapeError(f"{name}: expected [{length}] or [{batch}, {length}]. Received: {name}={list(ids.shape)}")


def distances(x: Tensor, query_ids: Tensor, key_ids: Tensor) -> Tensor:
    """Compute key position minus query position, [1|B, 1, Q, K]. Ids are [S] or [B, S], x is [B, H, Q, ·]."""
    check_ids("query_ids", query_ids, x.shape[0], x.shape[2])
    check_ids("key_ids", key_ids, x.shape[0], key_ids.shape[-1])
    keys = key_ids[..., None, :] - query_ids[..., :, None]
    return keys[None, None] if keys.ndim == 2 else keys[:, None]


def check_fits(scheme: object, num_heads: int, head_dim: int) -> None:
    """Raise ArgumentError unless a scheme, of PyTorch or of Keras, fits these numbers: see `Positions.check`."""
    for name, received in (("num_heads", num_heads), ("head_dim", head_dim)):
        made_for = getattr(scheme, name, received)
        if made_for != received:
            raise ArgumentError(f"positions: expected a module with {name}={made_for}. Received: {name}={received}")
