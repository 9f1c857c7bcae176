"""The same changes in eager attention, by hand, without headwise.

`changed` gives the model another softmax. `Products` follows the products before and after each softmax, and changes
what they multiply: queries, keys, values, or the output.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Change = Callable[[Tensor], Tensor]


def _keys(x: Tensor) -> int:
    """How many keys there are: gpt-oss has one column more, its learned sink."""
    queries, columns = x.shape[-2:]
    return queries if columns == queries + 1 else columns


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


What = Literal["q", "k", "v", "output"]


@dataclasses.dataclass
class Attention:
    """What one softmax was between: which products, and what these multiplied."""

    scores: int  # the number of the product that made its input
    numbers: dict[What, Tensor]  # k is transposed: [..., D, K]
    output: int = -1  # the number of the product with the values; -1 = there was none


class Products(TorchFunctionMode):
    """Follows matrix products inside of this context, and changes some.

    Args:
        changes: by the number of a product and what of it: another tensor in its place.
    """

    def __init__(self, changes: Mapping[tuple[int, What], Change] | None = None) -> None:
        super().__init__()
        self.attentions: list[Attention] = []
        self._changes, self._count = changes or {}, 0
        self._last: tuple[int, Tensor, Tensor, Tensor] | None = None
        self._weights = -1  # where the numbers of the last softmax are stored

    def __torch_function__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        name, kwargs = getattr(func, "__name__", ""), dict(kwargs or {})
        if name in ("softmax", "_softmax"):
            out = func(*args, **kwargs)
            if self._last is not None and self._last[3].numel() == out.numel():
                number, q, k, _ = self._last
                self.attentions.append(Attention(number, {"q": q, "k": k}))
                self._weights = out.untyped_storage().data_ptr()
            self._last = None
            return out
        if name in ("to", "type_as") and args[0].untyped_storage().data_ptr() == self._weights:
            out = func(*args, **kwargs)
            self._weights = out.untyped_storage().data_ptr()
            return out
        if name not in ("matmul", "__matmul__", "bmm", "baddbmm"):
            return func(*args, **kwargs)
        number, self._count = self._count, self._count + 1
        args = (*args, *(kwargs.pop(each) for each in ("batch1", "batch2") if each in kwargs))
        first = 1 if name == "baddbmm" else 0
        one, two = args[first : first + 2]
        same = self._changed(number)
        if one.untyped_storage().data_ptr() == self._weights:
            two = same("v", two)
            out = same("output", func(*args[:first], one, two, **kwargs))
            self.attentions[-1].output = number
            self.attentions[-1].numbers.update(v=two, output=out)
            self._weights = -1
            return out
        one, two = same("q", one), same("k", two)
        out = func(*args[:first], one, two, **kwargs)
        self._last = number, one, two, out
        return out

    def _changed(self, number: int) -> Callable[[What, Tensor], Tensor]:
        return lambda what, x: self._changes[number, what](x) if (number, what) in self._changes else x


def taken(
    what: What, row: int, target: Sequence[Attention], source: Sequence[Attention]
) -> dict[tuple[int, What], Change]:
    """The changes that give each attention of a run the numbers of another run, at one position."""
    dim = -1 if what == "k" else -2

    def change(theirs: Tensor) -> Change:
        def put(x: Tensor) -> Tensor:
            x = x.clone()
            x.select(dim, row).copy_(theirs.select(dim, row))
            return x

        return put

    return {
        (one.scores if what in ("q", "k") else one.output, what): change(two.numbers[what])
        for one, two in zip(target, source, strict=True)
    }


def temperature(t: float) -> dict[str, Change]:
    return {"scores": lambda s: s / t}


def ablated(head: int) -> dict[str, Change]:
    def change(w: Tensor) -> Tensor:
        w = w.clone()
        w[:, head] = 0.0
        return w

    return {"weights": change}


def scaled(head: int, by: float) -> dict[str, Change]:
    """The weights of one head times a number."""
    return {"weights": lambda w: w * torch.where(torch.arange(w.shape[1]) == head, by, 1.0)[:, None, None]}


def _starts(padding: Sequence[int], x: Tensor) -> list[int]:
    """The first real position of each example; without padding there may be more examples (windows of an image)."""
    return [*padding] if any(padding) else [0] * len(x)


def blocked(first_query: int, key: int, padding: Sequence[int] = (0, 0)) -> dict[str, Change]:
    """Queries from one position on do not see one key. Positions are counted behind the padding of each example."""

    def change(s: Tensor) -> Tensor:
        for b, before in enumerate(_starts(padding, s)):
            s[b, :, before + first_query :, before + key] = torch.finfo(s.dtype).min
        return s

    return {"scores": change}


def windowed(before: int, first: int, padding: Sequence[int] = (0, 0)) -> dict[str, Change]:
    """Each query sees so many keys before its own, and the first ones."""

    def change(s: Tensor) -> Tensor:
        q, k = torch.arange(s.shape[-2])[:, None] + _keys(s) - s.shape[-2], torch.arange(s.shape[-1])
        for b, start in enumerate(_starts(padding, s)):
            seen = ((k <= q) & (k >= q - before)) | ((k >= start) & (k < start + first)) | (k >= _keys(s))
            s[b].masked_fill_(~seen, torch.finfo(s.dtype).min)
        return s

    return {"scores": change}


def steered(key: int, by: float, padding: Sequence[int] = (0, 0)) -> dict[str, Change]:
    """The weight on one key times a number, normalised again."""

    def change(s: Tensor) -> Tensor:
        for b, start in enumerate(_starts(padding, s)):
            s[b, ..., start + key] += torch.tensor(by).log()
        return s

    return {"scores": change}


def shared(key: int, to: float, padding: Sequence[int] = (0, 0)) -> dict[str, Change]:
    """One key gets a share of each row that sees it and others too."""

    def change(w: Tensor) -> Tensor:
        keys = torch.arange(w.shape[-1]) == torch.tensor(_starts(padding, w))[:, None, None, None] + key
        mine = (w * keys).sum(-1, keepdim=True)
        rest = w[..., : _keys(w)].sum(-1, keepdim=True) - mine
        least = torch.finfo(w.dtype).tiny
        both = (mine > least) & (rest > least)
        whole = mine + rest  # less than 1 beside a learned sink
        other = torch.where(keys, to * whole / mine.clamp(min=least), (1 - to) * whole / rest.clamp(min=least)) * w
        return torch.where(both, other, w)

    return {"weights": change}


def largest(k: int) -> dict[str, Change]:
    """The largest weights of each row alone."""

    def change(w: Tensor) -> Tensor:
        of_keys, sink = w[..., : _keys(w)], w[..., _keys(w) :]
        kept = of_keys.masked_fill(of_keys < of_keys.topk(min(k, _keys(w)), -1).values[..., -1:], 0.0)
        kept = kept * (of_keys.sum(-1, keepdim=True) / kept.sum(-1, keepdim=True))
        return torch.cat([kept, sink], -1)

    return {"weights": change}


def rows_of(row: int, source: Sequence[Tensor]) -> dict[str, Change]:
    """One row of the weights of each softmax is that of another run."""
    given = iter(source)

    def change(w: Tensor) -> Tensor:
        w = w.clone()
        w[..., row, :] = next(given)[..., row, :]
        return w

    return {"weights": change}
