"""A dense mask at one bit per cell: an eighth of the memory of a bool tensor."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.errors import MaskError
from headwise.masks.cells import as_slice, make_strip_extents, of_one
from headwise.masks.fields import WRITTEN_OUT, Table, number, table
from headwise.masks.mask import Mask, mark_owned
from headwise.masks.relation import Allowed, Index
from headwise.masks.tables import look_up, of_rank_4

# The number of cells that are read at a time: they fit into a processor's cache, and are few compared with the mask.
BLOCK = 2**21


def bits(allowed: Tensor) -> Mask:
    """Make a mask that allows the True pairs of a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K], one bit per pair.

    The tensor is copied, so the caller may change it afterwards. `from_tensor` keeps the tensor itself, which is eight
    times as large, but quicker to read. `recognise` finds an even smaller form of the mask, if such a form exists.

    >>> print(bits(torch.tensor([[True, False, True], [True, True, False]])).draw(2, 3))
    ■ · ■
    ■ ■ ·
    """
    allowed = of_rank_4("bits", allowed)
    return make_bits((allowed[:, :, rows] for rows in row_blocks(allowed.shape)), allowed.shape[3])


def make_bits(blocks: Iterable[Tensor], k_len: int) -> Mask:
    """Make the mask of `bits` from a bool tensor in blocks of its rows, [B|1, H|1, rows, K]; at least one block."""
    return mark_owned(Bits(torch.cat([packed_bits(block) for block in blocks], dim=2), k_len))


def row_blocks(shape: tuple[int, ...], size: int = BLOCK) -> Iterator[slice]:
    """Split the Q rows of a tensor [B, H, Q, K] into one or more slices of at most `size` cells each, or of one row."""
    batch, heads, q_len, k_len = shape
    height = max(1, size // max(1, batch * heads * k_len))
    return (slice(i, min(i + height, q_len)) for i in range(0, max(1, q_len), height))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bits(Mask, kind="bits"):
    """A mask that allows a pair if bit k % 8 of packed[b, h, q, k // 8] is 1, where bit 0 is the lowest.

    The bits after the last key are 0. Its answers for rectangles (`extents`) are exact.
    """

    packed: Tensor = table("BHqn", torch.uint8)  # n = ⌈K/8⌉
    k_len: int = number(0)

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        return look_up(self.packed, b, h, q, k // 8) & _byte(1 << k % 8) != 0

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        packed = of_one(self.packed, b, h).to(q.device)[:, :, as_slice(q)]
        columns = as_slice(k)
        if not isinstance(columns, slice):
            return packed[..., columns // 8] & _byte(1 << columns % 8) != 0
        first = columns.start // 8
        unpacked = unpacked_bits(packed[..., first : -(-columns.stop // 8)])
        return unpacked[..., columns.start - 8 * first : columns.stop - 8 * first]

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        # Row of blocks by row of blocks. Where blocks are whole bytes nothing is unpacked: any cell is a byte that is
        # not 0, all cells are bytes of 255.
        strips = self.packed.split(block_q, dim=2)
        if block_k % 8 == 0:
            ends = ((rows.amax(2), _filled(rows, k_len).amin(2)) for rows in strips)
            return make_strip_extents(ends, block_k // 8, whole=255)
        unpacked = (unpacked_bits(rows)[..., :k_len].view(torch.uint8) for rows in strips)
        return make_strip_extents(((rows.amax(2), rows.amin(2)) for rows in unpacked), block_k, whole=1)

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        seen = np.bitwise_or.reduce(self.packed.cpu().numpy(), axis=2)
        return unpacked_bits(torch.from_numpy(seen))[..., :k_len]

    def check(self, q_len: int, k_len: int) -> None:
        if self.packed.shape[3] != -(-self.k_len // 8):
            raise MaskError(f"bits: {self.k_len} keys do not fit into bytes {list(self.packed.shape)}")
        super().check(q_len, k_len)

    @property
    def fixed_lengths(self) -> tuple[int, int]:
        return self.packed.shape[2], self.k_len

    def __repr__(self) -> str:
        # Only the shape of a large mask is shown: it is not unpacked.
        shape = (*self.packed.shape[:3], self.k_len)
        if math.prod(shape) <= WRITTEN_OUT:
            cells = unpacked_bits(self.packed)[..., : self.k_len]
        else:
            cells = self.packed.new_empty((), dtype=torch.bool).expand(shape)
        return f"{self.function}({Table('BHqk', (torch.bool,)).show('allowed', cells)})"


def _byte(x: Index) -> Index:
    """Convert an array or tensor to uint8, so that the cells of a mask need not have the larger dtype of its index."""
    return x if isinstance(x, int) else x.to(torch.uint8) if isinstance(x, Tensor) else x.astype(np.uint8)


def packed_bits(cells: Tensor) -> Tensor:
    """Pack bool cells [..., K] into bits: uint8 [..., ⌈K/8⌉], the lowest bit first."""
    if cells.device.type != "cpu":
        return _pack_by_shifts(cells)
    return torch.from_numpy(np.packbits(cells.numpy(), axis=-1, bitorder="little"))  # ten times as fast


def _pack_by_shifts(cells: Tensor) -> Tensor:
    eights = pad(cells.view(torch.uint8), (0, -cells.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (eights << torch.arange(8, dtype=torch.uint8, device=cells.device)).sum(-1, dtype=torch.uint8)


def unpacked_bits(packed: Tensor) -> Tensor:
    """Return the bool cells that `packed_bits` packed, with up to seven extra cells at the end of each row."""
    if packed.device.type != "cpu":
        return _unpack_by_shifts(packed)
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, bitorder="little")).view(torch.bool)


def _unpack_by_shifts(packed: Tensor) -> Tensor:
    eights = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (eights % 2).flatten(-2).view(torch.bool)


def _filled(packed: Tensor, k_len: int) -> Tensor:
    """Return `packed` with the bits after the last key set to 1."""
    if k_len % 8 == 0:
        return packed
    packed = packed.clone()
    packed[..., -1] |= 256 - 2 ** (k_len % 8)
    return packed
