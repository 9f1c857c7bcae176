"""What autograd.Functions keep for backward beside what autograd saves: nothing that their caller can write to."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor
from torch.autograd.function import BackwardCFunction


def check_held(out: Tensor, given: Iterable[Tensor]) -> set[str]:
    """Fail if a Function in the graph of `out` holds memory of what is `given`; the names of the Functions there."""
    memory = [(x.untyped_storage().data_ptr(), x.untyped_storage().nbytes()) for x in given]
    names = set()
    for node in nodes_of(out):
        names.add(type(node)._forward_cls.__name__)  # type: ignore[attr-defined]
        for path, address in _addresses(vars(node), "ctx", set()):
            held = any(start <= address < start + size for start, size in memory)
            assert not held, f"{type(node).__name__}: {path} is the caller's, who may change it before backward"
    return names


def nodes_of(out: Tensor) -> Iterator[Any]:
    """The autograd.Functions written in Python that gave `out`."""
    found, todo = set(), [out.grad_fn]
    while todo:
        node = todo.pop()
        if node is None or node in found:
            continue
        found.add(node)
        todo += [each for each, _ in node.next_functions]
        if isinstance(node, BackwardCFunction):
            yield node


def _addresses(value: Any, path: str, seen: set[int]) -> Iterator[tuple[str, int]]:
    """Where the numbers of all tensors and arrays lie that can be reached from a value."""
    if id(value) in seen or isinstance(value, (type, types.ModuleType, str, int, float)):
        return
    seen.add(id(value))
    inner: Iterable[tuple[str, Any]] = ()
    if isinstance(value, Tensor):
        yield path, value.data_ptr()
    elif isinstance(value, np.ndarray):
        yield path, value.ctypes.data
    elif isinstance(value, Mapping):
        inner = ((f"{path}[{key!r}]", each) for key, each in value.items())
    elif isinstance(value, (list, tuple, set)):
        inner = ((f"{path}[{i}]", each) for i, each in enumerate(value))
    elif isinstance(value, functools.partial):
        inner = [(f"{path}()", (value.func, value.args, value.keywords))]
    elif isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        inner = [(f"{path}()", [*cells, *(value.__defaults__ or ())])]
    elif type(value).__module__.startswith("headwise"):
        inner = ((f"{path}.{name}", each) for name, each in getattr(value, "__dict__", {}).items())
    for name, each in inner:
        yield from _addresses(each, name, seen)
