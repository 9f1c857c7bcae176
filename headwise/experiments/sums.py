"""Records which tensors of a run are sums of other tensors, to find the terms of a residual stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

Terms = list[tuple[Tensor, float]]  # tensors and their factors, which sum to another tensor

# Functions whose result has the numbers of their first argument, in another dtype or shape.
_SAME = {
    *("to", "float", "double", "half", "bfloat16", "type_as", "type", "contiguous", "clone", "dropout"),
    *("view", "reshape", "unsqueeze", "detach"),
}
_ADD, _ADD_IN_PLACE = {"add", "__add__", "__radd__"}, {"__iadd__", "add_"}
_TIMES, _OVER = {"mul", "__mul__", "__rmul__"}, {"div", "__truediv__", "true_divide"}


class Sums(TorchFunctionMode):
    """A context that records every sum of two tensors, and every product of a tensor and a number."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: dict[int, Terms] = {}
        self._alive: list[Tensor] = []  # keeps tensors alive, so that no id is used twice

    def of(self, x: Tensor, whole: Callable[[Tensor], bool] = lambda x: False) -> Terms:
        """Split x into the terms of which it is the sum: a list of (tensor, factor); only x itself if it is not a sum.

        Terms that are sums are split too, except tensors for which `whole` is true.
        """
        found: Terms = []
        stack: Terms = [(x, 1.0)]
        while stack:
            each, factor = stack.pop()
            parts = None if each is not x and whole(each) else self._parts.get(id(each))
            if parts is None:
                found.append((each, factor))
            else:
                stack += [(part, factor * by) for part, by in reversed(parts)]
        return found

    def multiples(self, x: Tensor) -> Terms:
        """Follow x back through multiplications by numbers: all (tensor, factor) with x = factor · tensor, x first."""
        found = [(x, 1.0)]
        while len(parts := self._parts.get(id(found[-1][0]), [])) == 1:
            found.append((parts[0][0], parts[0][1] * found[-1][1]))
        return found

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        parts = self._read(name, args, kwargs)
        out = func(*args, **kwargs)
        if parts is None or not isinstance(out, Tensor) or (name in _SAME and out is args[0]):
            return out
        # A tensor in another shape, unless it is a known sum, counts as new: it is named after the module that gave it.
        if name not in _SAME or args[0].shape == out.shape or id(args[0]) in self._parts:
            self._parts[id(out)] = parts
            self._alive += [out, *(x for x, _ in parts)]
        return out

    def _read(self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Terms | None:
        """Return the terms (tensor, factor) that an operation is about to add; None if it makes no sum or multiple."""
        if not args or not isinstance(args[0], Tensor) or not args[0].is_floating_point():
            return None
        if name in _SAME or (name == "__getitem__" and _is_whole(args[0], args[1])):
            return [(args[0], 1.0)]
        if len(args) != 2:
            return None
        one, two = args
        if name in _ADD | _ADD_IN_PLACE and isinstance(two, Tensor) and two.is_floating_point():
            if one.shape[-1:] != two.shape[-1:]:
                return None
            first: Terms | None = [(one, 1.0)]
            if name in _ADD_IN_PLACE:  # the numbers of `one` itself are about to be overwritten
                first = self._parts.get(id(one))
            return None if first is None else [*first, (two, float(kwargs.get("alpha", 1.0)))]
        if name in _TIMES | _OVER and isinstance(two, (int, float)):
            return [(one, 1 / two if name in _OVER else two)]
        if name in _ADD and isinstance(two, (int, float)) and two == 0:
            return [(one, 1.0)]
        return None


def _is_whole(x: Tensor, index: Any) -> bool:
    """Return whether an index selects the whole tensor, such as `hidden[:, slice(0, None)]` in transformers."""
    parts = index if isinstance(index, tuple) else (index,)
    if not all(isinstance(part, slice) for part in parts):
        return False
    return all(part.indices(size) == (0, size, 1) for part, size in zip(parts, x.shape, strict=False))
