"""Masks that allow whole blocks of pairs (block-sparse attention), and BigBird's pattern, which is such a mask."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.errors import MaskError
from headwise.masks.extent import Rectangles, make_extent
from headwise.masks.fields import number, table
from headwise.masks.mask import Mask, mark_owned
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import FAR, integer, look_up, of_rank_4


def block_sparse(layout: Tensor, block_size: int) -> Mask:
    """Allow the pairs whose block is True in `layout`: bool [Q/block_size, K/block_size], [H, ...] or [B|1, H|1, ...].

    `layout` must have exactly as many blocks as the lengths Q and K of the call need: ⌈Q / block_size⌉ × ⌈K /
    block_size⌉.

    >>> print(block_sparse(torch.tensor([[True, False], [True, True]]), 2).draw(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ■
    ■ ■ ■ ■
    """
    cells = of_rank_4("block_sparse: layout", layout)
    if 0 in cells.shape:
        raise MaskError(f"block_sparse: expected a layout of at least one block. Received: layout={list(layout.shape)}")
    return BlockSparse(cells, integer("block_sparse: block_size", block_size, least=1, most=FAR))


def big_bird(
    length: int,
    *,
    block_size: int = 64,
    window_blocks: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    seed: int = 0,
) -> Mask:
    """Make BigBird's mask (Zaheer et al. 2020, section 2) for `length` positions: window, global and random blocks.

    It allows `window_blocks` blocks (an odd number) around the diagonal, `global_blocks` blocks of positions at the
    start that see all positions and are seen by all, and `random_blocks` further blocks in each row of blocks, drawn
    from `seed`. The layout of the mask is on torch's default device.

    >>> print(big_bird(6, block_size=1, window_blocks=3, global_blocks=1, random_blocks=0).draw(6))
    ■ ■ ■ ■ ■ ■
    ■ ■ ■ · · ·
    ■ ■ ■ ■ · ·
    ■ · ■ ■ ■ ·
    ■ · · ■ ■ ■
    ■ · · · ■ ■
    """
    length = integer("big_bird: length", length, least=1)
    block_size = integer("big_bird: block_size", block_size, least=1, most=FAR)
    for name, value in (("global_blocks", global_blocks), ("random_blocks", random_blocks)):
        integer(f"big_bird: {name}", value, least=0)
    if integer("big_bird: window_blocks", window_blocks, least=1) % 2 == 0:
        raise MaskError(f"big_bird: window_blocks must be odd, the diagonal in the middle. Received: {window_blocks}")
    n = -(-length // block_size)
    index = torch.arange(n, device="cpu")
    layout = (index[:, None] - index[None, :]).abs() <= window_blocks // 2
    layout |= (index[:, None] < global_blocks) | (index[None, :] < global_blocks)
    # The random blocks of a row are those with the smallest draws among the blocks that are still free.
    drawn = torch.rand(n, n, generator=torch.Generator().manual_seed(seed), device="cpu")  # the same on every device
    draws = drawn.masked_fill(layout, 2.0)
    chosen = draws.argsort(dim=-1)[:, :random_blocks]
    layout |= torch.zeros_like(layout).scatter(1, chosen, True) & (draws < 2.0)
    layout = layout.to(torch.get_default_device())
    made_from = {"length": length, "window_blocks": window_blocks, "global_blocks": global_blocks}
    return mark_owned(BigBird(layout[None, None], block_size, **made_from, random_blocks=random_blocks, seed=seed))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BlockSparse(Mask, kind="block_sparse"):
    """A mask that allows a pair if layout[b, h, q // block_size, k // block_size] is True. Its `extents` are exact."""

    layout: Tensor = table("BHNM", torch.bool)  # a cell for each block of queries and of keys
    block_size: int = number(1)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.layout, b, h, q // self.block_size, k // self.block_size)

    def extents(self, r: Rectangles) -> Tensor:
        # sums[i, j] counts the allowed blocks above and left of (i, j): four look-ups count those of any rectangle.
        sums = self.remember(("sums",), BlockSparse._sums)
        q0, q1 = r.q_lo // self.block_size, (r.q_hi - 1) // self.block_size + 1
        k0, k1 = r.k_lo // self.block_size, (r.k_hi - 1) // self.block_size + 1
        allowed = sums[..., q1, k1] - sums[..., q0, k1] - sums[..., q1, k0] + sums[..., q0, k0]
        return make_extent(allowed > 0, allowed == (q1 - q0) * (k1 - k0))

    def _sums(self) -> Tensor:
        summed = self.layout.cpu().to(torch.int32).cumsum(-1).cumsum(-2)
        return torch.nn.functional.pad(summed, (1, 0, 1, 0))

    def check(self, q_len: int, k_len: int) -> None:
        super().check(q_len, k_len)
        needed = [-(-q_len // self.block_size), -(-k_len // self.block_size)]
        if list(self.layout.shape[2:]) != needed:
            raise MaskError(
                f"block_sparse: {q_len} queries and {k_len} keys in blocks of {self.block_size} need a layout of "
                f"{needed} blocks. Received: layout={list(self.layout.shape[2:])}"
            )

    def natural_lengths(self) -> tuple[int, int] | None:
        rows, cols = (blocks * self.block_size for blocks in self.layout.shape[2:])
        return rows, cols


@dataclasses.dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class BigBird(BlockSparse, function="big_bird"):
    """The mask of `big_bird`: its layout, and the arguments that made it. It has `length` queries and `length` keys."""

    length: int = 1
    window_blocks: int = 3
    global_blocks: int = 2
    random_blocks: int = 3
    seed: int = 0

    @property
    def fixed_lengths(self) -> tuple[int | None, int | None]:
        return self.length, self.length

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.length, self.length

    def __repr__(self) -> str:
        names = ("block_size", "window_blocks", "global_blocks", "random_blocks", "seed")
        return f"big_bird({self.length}, {', '.join(f'{name}={getattr(self, name)}' for name in names)})"


BigBird.kind = BlockSparse.kind  # files hold the layout: it does not depend on a version's random numbers
