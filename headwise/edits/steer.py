"""Turn the attention to some keys up or down: PASTA (Zhang et al. 2024), SpotLight (Venkateswaran et al. 2025)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.call import AttentionCall
from headwise.capture.layout import smallest
from headwise.edits.edit import Chosen, Edit, check_factor
from headwise.edits.positions import OfPairs, Positions
from headwise.edits.where import Where
from headwise.errors import ArgumentError
from headwise.records.names import Choice

if TYPE_CHECKING:
    from typing_extensions import Unpack


@dataclasses.dataclass(frozen=True, eq=False)
class Steer(OfPairs):
    """The edit that `steer(by=)` returns: it multiplies weights by a factor, by a bias of log(factor) on the scores."""

    by: float | Tensor = dataclasses.field(default=1.0, kw_only=True)

    def call(self, call: AttentionCall, at: Where) -> AttentionCall:
        queries, keys = self.pairs(at)
        by = torch.as_tensor(self.by, dtype=call.dtype, device=call.q.device).log()
        chosen = keys[:, None, None, :] & self.cells(at)[:, :, None, None]
        if not bool(queries.all()):
            chosen = chosen & queries[:, None, :, None]
        bias = torch.where(smallest(chosen, range(3)), by, 0.0)
        return dataclasses.replace(call, bias=bias if call.bias is None else call.bias.to(bias.dtype) + bias)


@dataclasses.dataclass(frozen=True, eq=False)
class Share(OfPairs):
    """The edit that `steer(to=)` returns: the selected keys together get this fraction of each query's weights."""

    to: float = dataclasses.field(kw_only=True)

    @property
    def name(self) -> str:
        return "steer"

    def weights(self, weights: Tensor, at: Where, rows: slice) -> Tensor:
        """Scale each row of weights, so that the selected keys have the fraction `to` of the row's sum.

        Rows in which only the selected keys have weight, or only other keys, do not change.
        """
        queries, keys = self.pairs(at)
        queries, keys = queries[:, None, rows, None], keys[:, None, None, :]
        share = torch.where(keys, weights, 0.0).sum(-1, keepdim=True)
        whole = weights.sum(-1, keepdim=True)
        rest = whole - share
        least = torch.finfo(weights.dtype).tiny
        possible = (share > least) & (rest > least) & queries & self.cells(at)[:, :, None, None]
        factor = torch.where(keys, self.to * whole / share, (1 - self.to) * whole / rest)
        return torch.where(possible, weights * factor, weights)


def steer(
    where: Choice,
    *,
    keys: Positions,
    by: float | Tensor | None = None,
    to: float | None = None,
    queries: Positions = None,
    **chosen: Unpack[Chosen],
) -> Edit:
    """Put more or less weight on some keys: by a factor (`by`), or to a given fraction of each query's weights (`to`).

    The weights of each query are normalised again.

    Args:
        where, heads, key_heads, examples, steps: as for every edit (`Edit`); `keys` and `queries` as for `block`.
        by: the factor for the weights on these keys, above 0: 10 is PASTA's emphasis; 0.01 weakens these keys, PASTA's
            other choice. Its logarithm is added to the scores as a bias, so that attention stays on fused kernels. A
            tensor of one number gets gradients.
        to: the fraction of each query's weights, between 0 and 1, that these keys get together. Their proportions among
            one another do not change. Queries for which these keys have no weight, or all weight, do not change.

    Raises ArgumentError unless exactly one of `by` and `to` is not None, and within these bounds.
    """
    if (by is None) == (to is None):
        raise ArgumentError(f"steer: give either by= (a factor) or to= (a share). Received: by={by!r}, to={to!r}")
    common: dict[str, Any] = {"keys": keys, "queries": queries, **chosen}
    if to is not None:
        if isinstance(to, Tensor) or not 0 <= to <= 1:
            raise ArgumentError(f"steer: to must be a number between 0 and 1. Received: to={to!r}")
        return Share(where, to=float(to), **common)
    assert by is not None
    check_factor("steer: by", by, "; to forbid keys use block")
    return Steer(where, by=by, **common)
