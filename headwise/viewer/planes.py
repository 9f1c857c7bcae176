"""Encodes masks (as runs of allowed keys) and biases as bytes; a page has one copy, however many layers share it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from headwise.masks import Mask
from headwise.records import AttentionRecord

BLOCK_CELLS = 2**22  # cells of a mask processed at once

Array = NDArray[Any]


class Shared:
    """Stores masks and biases, each once, even if several heads, layers and inputs share it."""

    def __init__(self) -> None:
        self._planes: dict[bytes, int] = {}
        self._biases: dict[bytes, int] = {}
        self._known: dict[Hashable, Any] = {}  # results for masks and tensors

    def planes(self, record: AttentionRecord, example: int) -> list[int] | None:
        """Return the index of the stored mask of each head of an example; one index if all share it; None = no mask."""
        mask, sizes = record.mask, record.shape[2:]
        if mask is None:
            return None
        try:
            key: Hashable = (mask, *sizes)
            hash(key)
        except TypeError:  # a custom mask that is not hashable
            key = (id(mask), *sizes)
        if key not in self._known:
            found = encode_planes(mask, *sizes)
            self._known[key] = [[self._planes.setdefault(data, len(self._planes)) for data in each] for each in found]
        planes: list[list[int]] = self._known[key]
        return planes[example % len(planes)]

    def bias(self, record: AttentionRecord, example: int) -> dict[str, Any] | None:
        """Return which stored bias an example has, with its kind and shape; None = no bias. Slopes are part of it."""
        given = [(x.data_ptr(), x.shape, x.stride(), x.dtype, x.device) for x in record.call.biases]
        if not given:
            return None
        key = (*given, example, record.shape, record.sinks is None)
        if key not in self._known:
            found = encode_bias(record, example)
            self._known[key] = found and {
                "block": f"bias{self._biases.setdefault(found.data, len(self._biases))}",
                "kind": found.kind,
                "shape": found.shape,
            }
        told: dict[str, Any] | None = self._known[key]
        return told

    def blocks(self) -> Iterator[tuple[str, bytes]]:
        yield from ((f"plane{number}", data) for data, number in self._planes.items())
        yield from ((f"bias{number}", data) for data, number in self._biases.items())


@dataclass(frozen=True)
class Bias:
    """The bias of one example (ALiBi slopes included): float32, little-endian, of this shape; -inf = forbidden."""

    kind: str  # "dense": [h, q, k], each full or 1; "relative": [h, Q + K - 1], by j - i + Q - 1
    shape: tuple[int, ...]
    data: bytes


def encode_runs(matrix: Array) -> NDArray[np.uint32]:
    """Encode a bool matrix [Q, K] as the runs of allowed keys of each query.

    First come Q + 1 indices, where each query begins in the list of runs; then the runs, as (first key, last key + 1).
    """
    # A forbidden key before each row, and one after the last row: so a run ends in its row, or at the start of the
    # next.
    padded = np.zeros(len(matrix) * (matrix.shape[1] + 1) + 1, bool)
    padded[:-1].reshape(len(matrix), -1)[:, 1:] = matrix
    turns = np.flatnonzero(padded[1:] != padded[:-1])
    rows = turns[::2] // (matrix.shape[1] + 1)
    first, past = turns.reshape(-1, 2).T - rows * (matrix.shape[1] + 1)
    places = np.searchsorted(rows, np.arange(len(matrix) + 1))
    return np.concatenate([places, np.stack([first, past], axis=1).ravel()]).astype("<u4")


def encode_planes(mask: Mask, q_len: int, k_len: int) -> list[list[bytes]]:
    """Encode a mask with `encode_runs`, as bytes: B lists (1 if examples share the mask) of H (or 1) matrices each."""
    blocks = list(_row_blocks(q_len, k_len * (mask.batch or 1) * (mask.heads or 1)))
    parts = [[[encode_runs(x) for x in example] for example in _cells(mask, rows, k_len).numpy()] for rows in blocks]
    counts = [len(rows) for rows in blocks]
    return [
        [_joined([part[b][h] for part in parts], counts).tobytes() for h in range(len(parts[0][b]))]
        for b in range(len(parts[0]))
    ]


def _joined(parts: list[NDArray[np.uint32]], counts: list[int]) -> NDArray[np.uint32]:
    """Join results of `encode_runs` for consecutive blocks of rows into one. `counts`: the rows of each block."""
    places, runs, before = [np.zeros(1, "<u4")], [], 0
    for part, count in zip(parts, counts, strict=True):
        places.append(part[1 : count + 1] + np.uint32(before))
        runs.append(part[count + 1 :])
        before += int(part[count])
    return np.concatenate([*places, *runs])


def carried_bias(record: AttentionRecord) -> Tensor | None:
    """Return bias and ALiBi slopes as one float32 [B, H, Q, K] (any size may be 1); None if no weight depends on it."""
    bias: Tensor | None = record.call.added() if record.slopes is not None else record.bias
    if bias is None:
        return None
    bias = bias[(None,) * (4 - bias.ndim)].float()
    for dim, stride in enumerate(bias.stride()):  # store broadcast axes once
        if stride == 0 and bias.shape[dim] > 1:
            bias = bias.narrow(dim, 0, 1)
    if common_to_rows(record):  # the softmax ignores it, unless it forbids the row
        bias = torch.where(bias == -torch.inf, bias, 0.0)
    return bias if bool(bias.any()) else None


def common_to_rows(record: AttentionRecord) -> bool:
    """Return whether the bias adds one number to all scores of a row, and there is no learned sink."""
    if record.bias is None or record.slopes is not None or record.sinks is not None:
        return False
    return bool(record.bias.shape[-1] == 1 < record.shape[3])


def encode_bias(record: AttentionRecord, example: int) -> Bias | None:
    """Encode the bias of one example in the smallest form that is exact; None if it changes no weight."""
    _, _, q_len, k_len = record.shape
    if record.bias is None and record.slopes is not None:
        far = (torch.arange(q_len + k_len - 1) - (k_len - 1)).abs()
        return _block("relative", -record.slopes.cpu().float()[:, None] * far)
    carried = carried_bias(record)
    if carried is None:
        return None
    bias = carried[example if len(carried) > 1 else 0].cpu()
    relative = _relative(bias, record.mask, example) if bias.shape[1:] == (q_len, k_len) else None
    return _block("dense", bias) if relative is None else _block("relative", relative)


def _block(kind: str, bias: Tensor) -> Bias:
    return Bias(kind, tuple(bias.shape), bias.numpy().astype("<f4").tobytes())


def _relative(bias: Tensor, mask: Mask | None, example: int) -> Tensor | None:
    """Return the bias [h, Q, K] as one number per distance, [h, Q + K - 1]; None if it depends on more than that."""
    heads, q_len, k_len = bias.shape
    lowest = torch.full((heads, q_len + k_len - 1), torch.inf)
    highest = -lowest
    for rows in _row_blocks(q_len, k_len * heads):
        low = high = bias[:, rows.start : rows.stop]
        if mask is not None:
            cells = _cells(mask, rows, k_len)
            allowed = cells[example % len(cells)]
            forbidden = ~(allowed.any(0, keepdim=True) if heads == 1 else allowed)
            low, high = low.masked_fill(forbidden, torch.inf), high.masked_fill(forbidden, -torch.inf)
        for i, row in enumerate(rows):
            of = slice(q_len - 1 - row, q_len - 1 - row + k_len)
            torch.minimum(lowest[:, of], low[:, i], out=lowest[:, of])
            torch.maximum(highest[:, of], high[:, i], out=highest[:, of])
    never = lowest > highest
    if not bool(((lowest == highest) | never).all()):
        return None
    return lowest.masked_fill(never, 0.0)


def _row_blocks(q_len: int, cells: int) -> Iterator[range]:
    """Yield blocks of consecutive rows, each of at most `BLOCK_CELLS` cells; `cells`: cells per row."""
    step = max(1, BLOCK_CELLS // cells)
    yield from (range(start, min(start + step, q_len)) for start in range(0, q_len, step))


def _cells(mask: Mask, rows: range, k_len: int) -> Tensor:
    """Return some rows of a mask, True = may attend: bool [B, H, rows, K], where B and H may be 1."""
    q, k = torch.arange(rows.start, rows.stop, device=mask.device), torch.arange(k_len, device=mask.device)
    return mask.cells(q, k).cpu()
