"""A dense mask at one bit a cell: an eighth of the memory of a bool tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from headwise.errors import DtypeError, MaskError
from headwise.masks.cellwise import as_slice
from headwise.masks.extent import extent_of
from headwise.masks.mask import Allowed, Index, Mask
from headwise.masks.tables import look_up

# Cells looked at at a time: they fit into a cache, and are little beside the mask.
BLOCK = 2**21


def bits(allowed: Tensor) -> Mask:
    """The pairs that are True in a bool tensor [Q, K], [H, Q, K] or [B|1, H|1, Q, K], kept at one bit a cell.

    The tensor is copied, so it may change afterwards. `from_tensor` keeps the tensor itself: eight times as large, and
    quicker to read; `recognise` finds a form that is smaller still where there is one.

    >>> print(bits(torch.tensor([[True, False, True], [True, True, False]])).draw(2, 3))
    ■ · ■
    ■ ■ ·
    """
    if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
        received = allowed.dtype if isinstance(allowed, Tensor) else type(allowed).__name__
        raise DtypeError(f"bits: expected a bool tensor, True = may attend. Received: {received}")
    if allowed.ndim not in (2, 3, 4):
        raise MaskError(f"bits: expected [Q, K], [H, Q, K] or [B, H, Q, K]. Received: {list(allowed.shape)}")
    allowed = allowed[(None,) * (4 - allowed.ndim)]
    return bits_of_rows((allowed[:, :, rows] for rows in row_blocks(allowed.shape)), allowed.shape[3])


def bits_of_rows(blocks: Iterable[Tensor], k_len: int) -> Mask:
    """What `bits` makes, from the consecutive blocks of rows of a mask, bool [B|1, H|1, rows, K], at least one."""
    return Bits(torch.cat([_pack(block) for block in blocks], dim=2), k_len)


def row_blocks(shape: tuple[int, ...], size: int = BLOCK) -> Iterator[slice]:
    """Blocks of the rows of [B, H, Q, K], at least one, of at most `size` cells or of one row."""
    batch, heads, q_len, k_len = shape
    height = max(1, size // max(1, batch * heads * k_len))
    return (slice(i, min(i + height, q_len)) for i in range(0, max(1, q_len), height))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bits(Mask):
    """Bit k % 8 of packed[b, h, q, k // 8], the lowest bit first; the bits after the last key are 0.

    Its rectangles are exact.
    """

    packed: Tensor  # uint8 [B|1, H|1, Q, ⌈K/8⌉]
    k_len: int

    @property
    def batch(self) -> int | None:
        return self.packed.shape[0] if self.packed.shape[0] > 1 else None

    @property
    def heads(self) -> int | None:
        return self.packed.shape[1] if self.packed.shape[1] > 1 else None

    def allows(self, b: Index, h: Index, q: Index, k: Index) -> Allowed:
        byte = look_up(self.packed, b if self.batch else b * 0, h if self.heads else h * 0, q, k // 8)
        return (byte >> (k % 8)) % 2 == 1

    def cells(self, q: Tensor, k: Tensor, *, b: int | None = None, h: int | None = None) -> Tensor:
        examples = slice(None) if b is None or not self.batch else slice(b, b + 1)
        heads = slice(None) if h is None or not self.heads else slice(h, h + 1)
        packed = self.packed[examples, heads].to(q.device)[:, :, as_slice(q)]
        columns = as_slice(k)
        if not isinstance(columns, slice):
            return (packed[..., columns // 8] >> (columns % 8)) % 2 == 1
        first = columns.start // 8
        unpacked = _unpack(packed[..., first : -(-columns.stop // 8)])
        return unpacked[..., columns.start - 8 * first : columns.stop - 8 * first]

    def grid(self, q_len: int, k_len: int, block_q: int, block_k: int) -> Tensor:
        # Row of blocks by row of blocks. Where blocks are whole bytes nothing is unpacked: any cell is a byte that is
        # not 0, all cells are bytes of 255.
        bytewise = block_k % 8 == 0
        width = block_k // 8 if bytewise else block_k
        found = []
        for rows in self.packed.split(block_q, dim=2):
            values = rows if bytewise else _unpack(rows)[..., :k_len].view(torch.uint8)
            highest, lowest = values.amax(2), _filled(values, k_len).amin(2) if bytewise else values.amin(2)
            some = pad(highest, (0, -highest.shape[-1] % width)).unflatten(-1, (-1, width)).amax(-1) > 0
            whole = 255 if bytewise else 1
            every = (
                pad(lowest, (0, -lowest.shape[-1] % width), value=whole).unflatten(-1, (-1, width)).amin(-1) == whole
            )
            found.append(extent_of(some, every))
        return torch.stack(found, dim=2).cpu()

    def seen_keys(self, q_len: int, k_len: int) -> Tensor:
        if not q_len:
            return super().seen_keys(q_len, k_len)
        if self.packed.device.type == "cpu":
            return _unpack(torch.from_numpy(np.bitwise_or.reduce(self.packed.numpy(), axis=2)))[..., :k_len]
        blocks = (_unpack(self.packed[:, :, rows]) for rows in row_blocks((*self.packed.shape[:3], k_len)))
        return torch.stack([block.any(2) for block in blocks]).any(0)[..., :k_len].cpu()

    def align(self, q_len: int, k_len: int) -> Mask:
        if (self.packed.shape[2], self.k_len) != (q_len, k_len):
            raise MaskError(
                f"mask: expected the last two sizes to be Q = {q_len} and K = {k_len}. Received: {self._shape()}"
            )
        return self

    def natural_lengths(self) -> tuple[int, int] | None:
        return self.packed.shape[2], self.k_len

    def _shape(self) -> list[int]:
        return [*self.packed.shape[:3], self.k_len]

    def __repr__(self) -> str:
        return f"bits(<bool {self._shape()}>)"


def _pack(cells: Tensor) -> Tensor:
    """Bool [..., K] as uint8 [..., ⌈K/8⌉], the lowest bit first."""
    if cells.device.type != "cpu":
        return _pack_by_shifts(cells)
    return torch.from_numpy(np.packbits(cells.numpy(), axis=-1, bitorder="little"))  # ten times as fast


def _pack_by_shifts(cells: Tensor) -> Tensor:
    eights = pad(cells.view(torch.uint8), (0, -cells.shape[-1] % 8)).unflatten(-1, (-1, 8))
    return (eights << torch.arange(8, dtype=torch.uint8, device=cells.device)).sum(-1, dtype=torch.uint8)


def _unpack(packed: Tensor) -> Tensor:
    """What `_pack` packed, with up to seven cells too many at the end."""
    if packed.device.type != "cpu":
        return _unpack_by_shifts(packed)
    return torch.from_numpy(np.unpackbits(packed.numpy(), axis=-1, bitorder="little")).view(torch.bool)


def _unpack_by_shifts(packed: Tensor) -> Tensor:
    eights = packed[..., None] >> torch.arange(8, dtype=torch.uint8, device=packed.device)
    return (eights % 2).flatten(-2).view(torch.bool)


def _filled(packed: Tensor, k_len: int) -> Tensor:
    """`packed` with the bits after the last key set to 1."""
    if k_len % 8 == 0:
        return packed
    packed = packed.clone()
    packed[..., -1] |= 256 - 2 ** (k_len % 8)
    return packed
