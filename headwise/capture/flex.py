"""Reads the two functions that FlexAttention takes, `mask_mod` and `score_mod`, as a mask, a bias and a softcap.

A `mask_mod` is evaluated at every cell. A `score_mod` may compute anything; it is evaluated at some positions with
several scores. A bias (f(s) = s + b), a softcap (c · tanh(s / c)) or both together are recognised; anything else is
refused. The caller compares the result with the output of FlexAttention.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from headwise import masks
from headwise.call import AttentionCall, make_call
from headwise.errors import RecordError
from headwise.masks import Mask

Function = Callable[..., Tensor]

# A mask with more cells than this is kept as its function.
DENSE = 2**28
_TRIED = 64


def read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Function,
    block_mask: tuple[Any, ...],
    scale: float,
    *_: Any,
    **__: Any,
) -> AttentionCall:
    """Make a call from FlexAttention's arguments. RecordError for a score_mod that is neither a bias nor a softcap."""
    shape = (*query.shape[:3], key.shape[2])
    key, value = (x.expand(query.shape[0], *x.shape[1:]) for x in (key, value))
    with torch._C._EnableTorchFunction(), _ByIndex():
        softcap, bias = _read_score_mod(score_mod, shape, query)
        mask = _read_mask_mod(block_mask[-1], shape, query.device)
    return make_call(query, key, value, mask=mask, bias=bias, scale=scale, softcap=softcap)


class _ByIndex(TorchFunctionMode):
    """Computes `slopes[h]` by `aten.index`: torch 2.8 would convert h to a number, which is impossible inside vmap."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is Tensor.__getitem__:
            at = args[1] if isinstance(args[1], tuple) else (args[1],)
            if at and all(isinstance(x, Tensor) for x in at):
                return torch.ops.aten.index(args[0], at)
        return func(*args, **(kwargs or {}))


def _read_mask_mod(mask_mod: Function, shape: tuple[int, ...], device: torch.device) -> Mask | None:
    lead = _lead(mask_mod, shape, device)
    if lead[0] * lead[1] * shape[2] * shape[3] > DENSE:
        batch, heads = (size if size > 1 else None for size in lead)
        return masks.from_predicate(mask_mod, batch=batch, heads=heads)
    return masks.recognise(_dense(mask_mod, (*lead, *shape[2:]), device).bool())


def _read_score_mod(score_mod: Function, shape: tuple[int, ...], query: Tensor) -> tuple[float | None, Tensor | None]:
    """Read a score_mod as (softcap, bias), each None if it has none. RecordError for any other function."""
    at, device = _positions(shape, query.device), query.device

    def tried(s: float) -> Tensor:
        return torch.vmap(functools.partial(score_mod, torch.tensor(s, dtype=torch.float64, device=device)))(*at)

    scores = torch.tensor([-30.0, -2.0, 0.5, 8.0], dtype=torch.float64, device=device)
    base = tried(0.0)
    moved = torch.stack([tried(s) - base for s in scores.tolist()])
    if not bool(torch.isclose(moved, moved[:, :1], rtol=1e-4, atol=1e-4).all()):
        raise RecordError(
            "its score_mod is neither a bias nor a softcap: its effect on a score depends on the position"
        )
    softcap = _softcap(scores, moved[:, 0], float((tried(1e9) - base)[0]))
    if bool((base == 0).all()):
        return softcap, None
    bias = functools.partial(score_mod, query.new_zeros(()))
    return softcap, _dense(bias, (*_lead(bias, shape, device), *shape[2:]), device)


def _softcap(scores: Tensor, moved: Tensor, limit: float) -> float | None:
    near = 1e-3 * scores.abs().clamp(min=1.0)
    if bool(((moved - scores).abs() <= near).all()):
        return None
    if limit > 0 and bool(((moved - limit * torch.tanh(scores / limit)).abs() <= near).all()):
        return limit
    raise RecordError("its score_mod is neither a bias nor a softcap")


def _positions(shape: tuple[int, ...], device: torch.device) -> list[Tensor]:
    """Return some random positions (b, h, q, k) of the attention matrix: the same positions at every call."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(size, (_TRIED,), generator=generator, device="cpu").to(device) for size in shape]


def _lead(function: Function, shape: tuple[int, ...], device: torch.device) -> tuple[int, int]:
    """Find whether a function depends on the example and on the head: (B, H), with 1 in place of a size without effect.

    The results are compared at some positions only.
    """
    at, several = _positions(shape, device), torch.vmap(function)
    here = several(*at)
    sizes = []
    for dim in (0, 1):
        others = (several(*at[:dim], torch.full_like(at[dim], i), *at[dim + 1 :]) for i in range(shape[dim]))
        sizes.append(shape[dim] if any(not torch.equal(here, other) for other in others) else 1)
    return sizes[0], sizes[1]


def _dense(function: Function, shape: tuple[int, ...], device: torch.device) -> Tensor:
    for dims in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
        function = torch.vmap(function, in_dims=dims)
    return function(*(torch.arange(size, device=device) for size in shape))
