"""Block-sparse layouts, and the BigBird pattern made of them."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from headwise.errors import DtypeError, MaskError
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import index_at, look_up


def block_sparse(layout: Tensor, block_size: int) -> Mask:
    """The pairs whose block is True in `layout`, bool [Q/block, K/block], [H, ...] or [B|1, H|1, ...].

    The lengths of a call must need exactly that many blocks: ⌈Q / block_size⌉ × ⌈K / block_size⌉.

    >>> print(block_sparse(torch.tensor([[True, False], [True, True]]), 2).draw(4))
    ■ ■ · ·
    ■ ■ · ·
    ■ ■ ■ ■
    ■ ■ ■ ■
    """
    if not isinstance(layout, Tensor) or layout.dtype != torch.bool:
        received = layout.dtype if isinstance(layout, Tensor) else type(layout).__name__
        raise DtypeError(f"block_sparse: layout must be a bool tensor. Received: {received}")
    if layout.ndim not in (2, 3, 4) or 0 in layout.shape:
        raise MaskError(
            f"block_sparse: layout must be [Q, K], [H, Q, K] or [B, H, Q, K]. Received: {list(layout.shape)}"
        )
    return BlockSparse(layout[(None,) * (4 - layout.ndim)], index_at("block_sparse: block_size", block_size, minimum=1))


def big_bird(
    length: int,
    *,
    block_size: int = 64,
    window_blocks: int = 3,
    global_blocks: int = 2,
    random_blocks: int = 3,
    seed: int = 0,
) -> Mask:
    """BigBird's pattern (Zaheer et al. 2020, section 2) for `length` positions: window, global and random blocks.

    `window_blocks` (odd) around the diagonal, `global_blocks` at the start that see and are seen by all, and
    `random_blocks` further ones in each row, drawn from `seed`.

    >>> print(big_bird(6, block_size=1, window_blocks=3, global_blocks=1, random_blocks=0).draw(6))
    ■ ■ ■ ■ ■ ■
    ■ ■ ■ · · ·
    ■ ■ ■ ■ · ·
    ■ · ■ ■ ■ ·
    ■ · · ■ ■ ■
    ■ · · · ■ ■
    """
    length = index_at("big_bird: length", length, minimum=1)
    block_size = index_at("big_bird: block_size", block_size, minimum=1)
    for name, value in (("global_blocks", global_blocks), ("random_blocks", random_blocks)):
        index_at(f"big_bird: {name}", value)
    if index_at("big_bird: window_blocks", window_blocks, minimum=1) % 2 == 0:
        raise MaskError(f"big_bird: window_blocks must be odd, the diagonal in the middle. Received: {window_blocks}")
    n = -(-length // block_size)
    index = torch.arange(n)
    layout = (index[:, None] - index[None, :]).abs() <= window_blocks // 2
    layout |= (index[:, None] < global_blocks) | (index[None, :] < global_blocks)
    # The random blocks of a row are those with the smallest draws among the blocks that are still free.
    draws = torch.rand(n, n, generator=torch.Generator().manual_seed(seed)).masked_fill(layout, 2.0)
    chosen = draws.argsort(dim=-1)[:, :random_blocks]
    layout |= torch.zeros_like(layout).scatter(1, chosen, True) & (draws < 2.0)
    return BlockSparse(layout[None, None], block_size)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class BlockSparse(Mask):
    """layout[b, h, q // block_size, k // block_size]. Its rectangles are exact."""

    layout: Tensor  # bool [B|1, H|1, Q / block_size, K / block_size]
    block_size: int

    @property
    def batch(self) -> int | None:
        return self.layout.shape[0] if self.layout.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.layout.shape[1] if self.layout.shape[1] > 1 else None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        b, h = b if self.batch else b * 0, h if self.heads else h * 0
        return look_up(self.layout, b, h, q // self.block_size, k // self.block_size)

    def rectangles(
        self, q_lo: Tensor, q_hi: Tensor, k_lo: Tensor, k_hi: Tensor, wanted: Tensor | None = None
    ) -> Tensor:
        # sums[i, j] counts the allowed blocks above and left of (i, j): four look-ups count those of any rectangle.
        sums = self.remember(("sums",), self._sums)
        q0, q1 = q_lo // self.block_size, (q_hi - 1) // self.block_size + 1
        k0, k1 = k_lo // self.block_size, (k_hi - 1) // self.block_size + 1
        allowed = sums[..., q1, k1] - sums[..., q0, k1] - sums[..., q1, k0] + sums[..., q0, k0]
        return extent_of(allowed > 0, allowed == (q1 - q0) * (k1 - k0))

    def _sums(self) -> Tensor:
        summed = self.layout.cpu().to(torch.int32).cumsum(-1).cumsum(-2)
        return torch.nn.functional.pad(summed, (1, 0, 1, 0))

    def align(self, q_len: int, k_len: int) -> Mask:
        needed = [-(-q_len // self.block_size), -(-k_len // self.block_size)]
        if list(self.layout.shape[2:]) != needed:
            raise MaskError(
                f"block_sparse: {q_len} queries and {k_len} keys in blocks of {self.block_size} need a layout of "
                f"{needed} blocks. Received: {list(self.layout.shape[2:])}"
            )
        return self

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.layout.shape[2] * self.block_size, self.layout.shape[3] * self.block_size

    def __repr__(self) -> str:
        return f"block_sparse(<layout {list(self.layout.shape)}>, {self.block_size})"
