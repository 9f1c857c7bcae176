"""Additive masks, which are added to the scores: find the cells that they forbid, and an equal `Mask` if there is one.

The one rule: a cell (a pair of a query and a key) is forbidden if its bias is at least 9984 below the highest bias of
its row. See `FORBIDS`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwise.masks.bits import row_blocks
from headwise.masks.mask import Mask
from headwise.masks.recognise import Cells, at_its_smallest, recognise, recognise_cells
from headwise.masks.tables import of_rank_4

# A number this low forbids: beside a score of 0 its weight is exp(-9984) = 0, in float64 too. It is what bfloat16 makes
# of the customary -10000.
FORBIDS = -9984.0
# A number so low that scores round to it: a row that is this number everywhere attends to all keys alike.
UNIFORM = -1e30


def recognise_additive(bias: Tensor) -> tuple[Mask | None, Tensor | None]:
    """Find the mask in a float tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K] that is added to the scores: (mask, rest).

    `rest` must still be added to the scores of the pairs that the mask allows. The result is:

    - (mask, None) if each row holds only 0 and "forbidden": -inf, or -9984 and less (-10000, -1e9, finfo.min of any
      dtype; -9984 is -10000 in bfloat16). The mask is None if the tensor holds nothing but 0.
    - (mask, rows), rows [B|1, H|1, Q|1, 1], if finite numbers forbid every cell of some rows. Such a row still attends:
      to the cells with its highest number. The mask allows these cells, and forbids cells that are 9984 or more below
      them; `rows` holds the highest number of such a row, 0 for other rows, in the dtype of `bias`. `rows` must still
      be added to the scores, because it rounds them: scores + finfo.min are all equal, so that all keys get the same
      weight.
    - (None, bias), with the same tensor, if the tensor holds anything else: ALiBi, T5's relative positions, NaN.

    A key forbidden by -inf has the weight 0 exactly. A key forbidden by a finite value c, in a row whose other keys
    have 0, has the weight exp(s + c - lse), where s is its score. That is 0 in float32 unless s is more than 9880
    (float64: 9239) above the highest score of an allowed key in the row. So (mask, rows) gives the same weights as
    `bias` unless scores spread that far.

    Raises DtypeError for anything but a float tensor, MaskError for other ranks.

    >>> low = torch.finfo(torch.float32).min
    >>> recognise_additive(torch.tensor([[0.0, low], [0.0, 0.0]]))
    (causal(offset=0), None)
    >>> recognise_additive(torch.tensor([[low, low], [low, 0.0]]))[1].tolist()
    [[[[-3.4028234663852886e+38], [0.0]]]]
    >>> recognise_additive(torch.tensor([[0.0, -0.5], [-0.5, 0.0]]))
    (None, tensor([[ 0.0000, -0.5000],
            [-0.5000,  0.0000]]))
    """
    values = at_its_smallest(of_rank_4("recognise_additive", bias, floats=True).detach())
    if 0 in values.shape:
        return None, None
    top = _top(values[:, :, :1] if values.stride(2) == 0 else values)
    if top is None:
        return None, bias
    rows = None
    if bool((top < 0).any()):
        below = (top < 0) & top.isfinite()
        rows = torch.where(below, top, 0.0) if bool(below.any()) else None
        top = top.masked_fill(top == -torch.inf, torch.nan)
    return recognise_cells(Cells(values, top.expand(*values.shape[:3], 1))), rows


def split_additive(bias: Tensor) -> tuple[Mask | None, Tensor]:
    """Split a bias that also forbids cells into a mask and the bias of allowed cells: (mask, rest), or (None, bias).

    For example, T5 adds relative positions and finfo.min in one tensor. Cells that lie `FORBIDS` or more below the
    highest number of their row are forbidden; `rest` [B|1, H|1, Q|1, K] is 0 there. A row in which every number is
    `UNIFORM` or lower forbids only its cells of -inf. A bias that reaches down step by step (ALiBi over a long text)
    contains no mask, and the result is (None, bias): in a bias with a mask, no number may lie between those that forbid
    and half of `FORBIDS`.

    Args:
        bias: float [Q, K], [H, Q, K] or [B|1, H|1, Q, K].

    Raises DtypeError for anything but a float tensor, MaskError for other ranks.
    """
    given = of_rank_4("split_additive", bias, floats=True)
    values = given.detach()
    if 0 in values.shape:
        return None, bias
    once = values[:, :, :1] if values.stride(2) == 0 else values
    top = once.amax(-1, keepdim=True).clamp(min=torch.finfo(once.dtype).min)
    below = once - top
    forbidden = (below <= FORBIDS) & ((top > UNIFORM) | (once == -torch.inf))
    if not bool(forbidden.any()) or bool((~forbidden & (below < FORBIDS / 2)).any()):
        return None, bias
    rest = given[:, :, : once.shape[2]].masked_fill(forbidden, 0.0)
    return recognise((~forbidden).expand(values.shape)), rest


def _top(values: Tensor) -> Tensor | None:
    """Return the highest number of each row, which its allowed cells have, [B, H, Q, 1]; None if the tensor is no mask.

    It is no mask if a row's highest number is neither 0 nor forbids, or if a lower number of the row does not forbid.
    """
    tops = []
    for rows in row_blocks(values.shape):
        block = values[:, :, rows]
        top = block.amax(-1, keepdim=True)
        known = (block == top).logical_or_(block <= top + FORBIDS)
        # As bytes, because amin is many times as fast as all().
        if not bool(((top == 0) | (top <= FORBIDS)).all() & known.view(torch.uint8).amin().bool()):
            return None
        tops.append(top)
    return torch.cat(tops, dim=2)
