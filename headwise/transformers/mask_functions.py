"""From transformers' mask functions to `headwise.masks`: what a forward's mask is, read without making its matrix.

transformers composes the mask of a forward of small functions of two positions: causal, a window, chunks, packed
sequences, padding, and what a model or a user adds. Each is a closure, so its parts and numbers can be read. A function
that is not known here is evaluated for every cell, as transformers does, and its matrix is recognised.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils

from headwise import masks
from headwise.masks import Mask
from headwise.masks.band import Band
from headwise.tracing import is_plain
from headwise.transformers.mask_tensor import MaskTensor

MaskFunction = Callable[..., Any]

# Makers of masks then got the positions of all queries, not the number of queries and the position of the first.
BEFORE_5_4 = "cache_position" in inspect.signature(masking_utils.eager_mask).parameters


def make_mask(
    batch_size: int,
    q_length: int = 0,
    kv_length: int = 0,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: Tensor | None = None,
    allow_is_bidirectional_skip: bool = False,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    cache_position: Tensor | None = None,
    **more: Any,
) -> Tensor | None:
    """Make the mask of a forward, as transformers' other makers of masks do: a `MaskTensor` [B, 1, Q, K].

    A plain float tensor of the same cells is made where code is compiled or traced, and for a step of one query whose
    position is a tensor (a static cache), because compiled code may get it.

    Args:
        batch_size, q_length, kv_length: the sizes B, Q and K.
        q_offset, kv_offset: the positions of the first query and of the first key.
        mask_function: says of positions (b, h, q, k) whether query q may attend to key k; None = k <= q.
        attention_mask: [B, positions], bool, True = a token; it may end before the last key (the rest is padding).
        allow_is_bidirectional_skip: whether to return None where every query may attend to every key.
        dtype, device: those of the model's hidden states.
        cache_position: [Q], the positions of the queries: transformers before 5.4 passes them in place of q_length,
            q_offset and device.
        more: what `transformers.masking_utils.eager_mask` takes besides.
    """
    mask_function = masking_utils.causal_mask_function if mask_function is None else mask_function
    if cache_position is not None:
        q_length, q_offset, device = len(cache_position), cache_position[0], device or cache_position.device
    device = torch.device(device or "cpu")
    if not is_plain() or (isinstance(q_offset, Tensor) and q_length == 1):
        if not BEFORE_5_4:
            more |= {"allow_is_bidirectional_skip": allow_is_bidirectional_skip, "device": device}
        sizes = say_sizes(batch_size, q_length, kv_length, q_offset, kv_offset, device)
        options = {"mask_function": mask_function, "attention_mask": attention_mask, "dtype": dtype}
        return masking_utils.eager_mask(**sizes, **options, **more)
    grid = Grid(batch_size, q_length, kv_length, int(q_offset), kv_offset, device)
    found = grid.read(mask_function)
    if attention_mask is not None and not bool((real := grid.at_keys(attention_mask, filler=0)).all()):
        found = masks.padding(real) if found is None else found & masks.padding(real)
    if found is None and allow_is_bidirectional_skip:
        return None
    if q_length == 1 and found is not None:
        found = _of_a_step(found, kv_length)
        if found is None and more.get("allow_is_causal_skip"):
            return None
    return MaskTensor(found, (batch_size, 1, q_length, kv_length), dtype, grid.device)


@dataclasses.dataclass(frozen=True)
class Grid:
    """The queries and keys of a forward: how many, and the positions of the first ones."""

    batch: int
    q_len: int
    k_len: int
    q_offset: int
    k_offset: int
    device: torch.device

    @property
    def offset(self) -> int:
        """The place of the first query among the keys."""
        return self.q_offset - self.k_offset

    def at_keys(self, table: Tensor, *, filler: int) -> Tensor:
        """Cut [B, positions] to the positions of the keys, [B, K]; positions behind its end hold `filler`."""
        missing = self.k_offset + self.k_len - table.shape[-1]
        padded = torch.nn.functional.pad(table, (0, missing), value=filler) if missing > 0 else table
        return padded[:, self.k_offset : self.k_offset + self.k_len]

    def read(self, function: MaskFunction, positions: Tensor | None = None) -> Mask | None:
        """Return the mask of a mask function; None if it allows every pair.

        `positions` [B, K]: the positions that the function gets in place of the places in the row, where sequences are
        packed. Within a sequence they differ by as much as the places do.
        """
        if not inspect.isfunction(function):  # a partial, or another object that can be called
            return self._evaluate(function, positions)
        name = f"{function.__module__}.{function.__qualname__}".removeprefix("transformers.masking_utils.")
        inner = [cell.cell_contents for cell in function.__closure__ or ()]
        given = dict(zip(function.__code__.co_freevars, inner, strict=True))  # the variables of the closure
        match name.partition(".<locals>")[0]:
            case "causal_mask_function":
                return masks.causal(self.offset)
            case "bidirectional_mask_function":
                return None
            case "and_masks":
                parts = [self.read(each, positions) for each in given["mask_functions"]]
                found = [part for part in parts if part is not None]
                return functools.reduce(_intersect, found) if found else None
            case "or_masks":
                parts = [self.read(each, positions) for each in given["mask_functions"]]
                return None if None in parts else functools.reduce(operator.or_, parts)
            case "sliding_window_overlay" if given["sliding_window"] > 0:
                return masks.window(given["sliding_window"] - 1, None, self.offset)
            case "sliding_window_bidirectional_overlay":
                return masks.window(given["sliding_window"], given["sliding_window"], self.offset)
            case "padding_mask_function":
                return masks.padding(self.at_keys(given["padding_mask"], filler=0))
            case "remap_positions_for_packed_sequence":
                return self.read(given["mask_function"], given["position_ids"])
            case "chunked_overlay" if self._is_among_keys():
                places = self.k_offset + torch.arange(self.k_len) if positions is None else positions.cpu()
                chunks = (places - given["left_padding"].cpu()[:, None]) // given["chunk_size"]
                return masks.documents(chunks - chunks.min(), self.offset)
            case "blockwise_overlay" if self._is_among_keys():
                return masks.documents(self.at_keys(given["block_sequence_ids"], filler=-1), self.offset)
            case "packed_sequence_mask_function" if self._is_among_keys():
                return masks.documents(given["packed_sequence_mask"], self.offset)
        return self._evaluate(function, positions)

    def _is_among_keys(self) -> bool:
        """Whether each query has the position of a key, so that one table holds the ids of both."""
        return 0 <= self.offset <= self.k_len - self.q_len

    def _evaluate(self, function: MaskFunction, positions: Tensor | None) -> Mask | None:
        """Evaluate a function for every cell; it may be written for one pair of numbers, so torch.vmap calls it."""
        if positions is not None:
            function = masking_utils.remap_positions_for_packed_sequence(function, positions)
        sizes = say_sizes(self.batch, self.q_len, self.k_len, self.q_offset, self.k_offset, self.device)
        options = {} if BEFORE_5_4 else {"device": self.device, "use_vmap": True}
        cells = masking_utils.sdpa_mask(**sizes, mask_function=function, allow_is_causal_skip=False, **options)
        return masks.recognise(cells)


def _intersect(a: Mask, b: Mask) -> Mask:
    """Return `a & b`; of two bands, a causal mask and a window for example, one band."""
    if isinstance(a, Band) and isinstance(b, Band) and a.offset == b.offset:
        sides = [[x for x in pair if x is not None] for pair in ((a.left, b.left), (a.right, b.right))]
        left, right = (min(numbers, default=None) for numbers in sides)
        return masks.window(left, right, a.offset)
    return a & b


def _of_a_step(found: Mask, k_len: int) -> Mask | None:
    """Return the mask of one query; None if it sees every key, as in most decoding steps."""
    band = found.band()
    if band is not None:
        return None if band[0] <= 0 and band[1] >= k_len - 1 else found
    seen = found.to_bool(1, k_len)[:, 0, 0]
    return None if bool(seen.all()) else masks.padding(seen)


def say_sizes(
    batch: int, q_len: int, k_len: int, q_offset: int | Tensor, k_offset: int, device: torch.device
) -> dict[str, Any]:
    """Return the sizes of a mask as arguments of transformers' own makers."""
    sizes: dict[str, Any] = {"batch_size": batch, "kv_length": k_len, "kv_offset": k_offset}
    if BEFORE_5_4:
        return sizes | {"cache_position": q_offset + torch.arange(q_len, device=device)}
    return sizes | {"q_length": q_len, "q_offset": q_offset}
