"""The same changes in eager attention, by hand, without headwise: the softmax that a model calls is another one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


def _same(x: Tensor) -> Tensor:
    return x


@contextlib.contextmanager
def changed(scores: Change = _same, weights: Change = _same) -> Iterator[list[int]]:
    """Inside this context every softmax of [B, H, Q, K] scores is changed; gives a list that grows with each."""
    softmax, calls = torch.Tensor.softmax, list[int]()

    def other(x: Tensor, dim: int | None = None, _stacklevel: int = 3, dtype: torch.dtype | None = None) -> Tensor:
        if x.ndim != 4 or dim not in (-1, 3):
            return softmax(x, dim, dtype=dtype)  # type: ignore[arg-type]
        calls.append(1)
        return weights(softmax(scores(x.clone()), -1, dtype=dtype))

    def of_torch(x: Tensor, dim: int, *args: Any, **kwargs: Any) -> Tensor:
        return other(x, dim, **kwargs)

    with (
        mock.patch("torch.nn.functional.softmax", other),
        mock.patch("torch.softmax", of_torch),
        mock.patch("torch.Tensor.softmax", of_torch),
    ):
        yield calls


def temperature(t: float) -> dict[str, Change]:
    return {"scores": lambda s: s / t}


def ablated(head: int) -> dict[str, Change]:
    def change(w: Tensor) -> Tensor:
        w = w.clone()
        w[:, head] = 0.0
        return w

    return {"weights": change}


def blocked(first_query: int, key: int) -> dict[str, Change]:
    def change(s: Tensor) -> Tensor:
        s[:, :, first_query:, key] = torch.finfo(s.dtype).min
        return s

    return {"scores": change}


def steered(key: int, by: float) -> dict[str, Change]:
    def change(s: Tensor) -> Tensor:
        s[..., key] += torch.tensor(by).log()
        return s

    return {"scores": change}


def largest(k: int) -> dict[str, Change]:
    def change(w: Tensor) -> Tensor:
        kept = w.masked_fill(w < w.topk(min(k, w.shape[-1]), -1).values[..., -1:], 0.0)
        return kept / kept.sum(-1, keepdim=True)

    return {"weights": change}
