"""Switch heads off, or replace their output by a mean or by the output for another example."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from headwise.edits.edit import Chosen, Edit
from headwise.edits.means import compute_means
from headwise.edits.where import Where
from headwise.errors import ArgumentError, ShapeError
from headwise.records import Seen
from headwise.records.names import Choice

if TYPE_CHECKING:
    from typing_extensions import Unpack

How = Literal["zero", "mean", "resample"]


@dataclasses.dataclass(frozen=True, eq=False)
class Ablate(Edit):
    """The edit that the function `ablate` returns: it replaces the output of heads."""

    how: How = dataclasses.field(default="zero", kw_only=True)
    means: Mapping[str, Tensor] | None = dataclasses.field(default=None, kw_only=True)  # [H, E] by layer

    @property
    def sets(self) -> str:
        return "output"

    def output(self, out: Tensor, at: Where) -> Tensor:
        cells = self.cells(at)[:, :, None, None]
        if self.how == "zero":
            return out.masked_fill(cells, 0.0)
        if self.how == "resample":
            if at.batch < 2:
                raise ArgumentError(
                    f'ablate: how="resample" takes the next example of the batch. Received: one example at {at.site}'
                )
            return torch.where(cells, out.roll(-1, 0), out)
        if self.means is None:
            return torch.where(cells, _mean_so_far(out, at), out)
        mean = self.means.get(at.site)
        if mean is None or mean.shape != (at.heads, out.shape[3]):
            received = "none" if mean is None else list(mean.shape)
            raise ArgumentError(
                f"ablate: expected a mean output [{at.heads}, {out.shape[3]}] for {at.site}. Received: {received}"
            )
        return torch.where(cells, mean.to(out)[:, None], out)


@dataclasses.dataclass(frozen=True, eq=False)
class HeadMask(Edit):
    """The edit that the function `head_mask` returns: it multiplies the output of heads by numbers."""

    factors: Tensor = dataclasses.field(kw_only=True)

    def output(self, out: Tensor, at: Where) -> Tensor:
        if self.factors.shape not in ((), (at.heads,), (at.batch, at.heads)):
            raise ShapeError(
                f"head_mask: expected a number, [{at.heads}] or [{at.batch}, {at.heads}] for {at.site}. Received: "
                f"factors={list(self.factors.shape)}"
            )
        factors = self.factors.to(out.device, out.dtype).expand(at.batch, at.heads)
        return out * torch.where(self.cells(at), factors, 1.0)[:, :, None, None]


def ablate(
    where: Choice,
    *,
    how: How = "zero",
    means: Mapping[str, Tensor] | Seen | None = None,
    **chosen: Unpack[Chosen],
) -> Ablate:
    """Replace the output of heads, before the output projection.

    Args:
        where, heads, key_heads, examples, steps: as for every edit (`Edit`).
        how: "zero" = 0, as TransformerLens' zero ablation; "mean" = the mean of the head's outputs at this query and
            all queries before it, in the same example, without padding (a decoder may not know later outputs);
            "resample" = the outputs for the next example of the batch, at the same index. (To take the outputs of
            another run, use `patch(where, source, "output")`.)
        means: for how="mean", the means of a data set instead: the result of `mean_outputs`, or the records of another
            run that was watched with values=True (all queries of the records count, padding too).

    Raises ArgumentError for another `how`; and, while the model runs, for heads that a layer does not have.
    """
    if how not in ("zero", "mean", "resample"):
        raise ArgumentError(f'ablate: how must be "zero", "mean" or "resample". Received: how={how!r}')
    if means is not None and how != "mean":
        raise ArgumentError(f'ablate: means are for how="mean". Received: how={how!r}')
    given = None if means is None else compute_means(means)
    return Ablate(where, how=how, means=given, **chosen)


def head_mask(where: Choice, factors: Tensor | float, **chosen: Unpack[Chosen]) -> HeadMask:
    """Multiply the weights of each head, and so its output, by a number, as `head_mask` of transformers 4 did.

    `factors` is a number, a tensor [H] or a tensor [B, H]; it gets gradients. Michel et al. 2019 call the gradient of a
    loss with respect to this number the importance of a head.
    """
    found = factors if isinstance(factors, Tensor) else torch.tensor(factors, device="cpu")
    return HeadMask(where, **chosen, factors=found)


def _mean_so_far(out: Tensor, at: Where) -> Tensor:
    """Compute for each query the mean output over this and all earlier queries, without padding: [B, H, Q, E]."""
    if at.step or at.shift > 0:
        raise ArgumentError(
            'ablate: how="mean" is the mean over the queries of one pass, and this pass goes on with a sequence. '
            f'Received: step {at.step} at {at.site}. Edit a prompt in one pass alone, steps="prompt", or give means='
        )
    if at.share is not None:
        raise ArgumentError(
            'ablate: how="mean" is the mean over all queries before. Received: a sequence that several processes '
            f"share, at {at.site}. Give means="
        )
    real = (at.queries >= 0)[:, None, :, None].to(out.dtype)
    return ((out * real).cumsum(2) / real.cumsum(2).clamp(min=1)).to(out.dtype)
