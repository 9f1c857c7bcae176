"""Norms inside an attention module: before its projections, on queries and keys, after its output."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping

from torch import Tensor, nn

from headwise.doctor.fitting.projection_names import read_name

Norm = Callable[[Tensor], Tensor]


@dataclasses.dataclass(frozen=True, eq=False)
class InnerNorms:
    """One guess of where a module's norms act."""

    query: Norm | None = None  # on the input of the queries
    memory: Norm | None = None  # on the input of keys and values
    output: Norm | None = None  # on the output, with or without the input added
    heads: Mapping[str, tuple[int, Norm]] = dataclasses.field(default_factory=dict)  # "q", "k" -> (width, norm)
    words: str = ""


def inner_norms(module: nn.Module, width: int, takes: str) -> list[InnerNorms]:
    """The places where its norms may act, the most likely first; those of queries and keys are found by their names."""
    heads: dict[str, tuple[int, Norm]] = {}
    wide: list[nn.Module] = []
    for path, norm, size in _norms(module):
        letters = read_name(path).letters
        if letters in ("q", "k"):
            heads.setdefault(letters, (size, norm))
        elif size == width:
            wide.append(norm)
    found = [InnerNorms(heads=heads)]
    found += [InnerNorms(norm, norm, None, heads, "a norm before the projections") for norm in wide[:2]]
    if takes != "self" and wide:
        found.append(InnerNorms(wide[0], None, None, heads, "a norm on the queries' input"))
        for first, second in itertools.permutations(wide[:2], 2):
            found.append(InnerNorms(first, second, None, heads, "a norm before the projections"))
    return found + [InnerNorms(None, None, norm, heads, "a norm at the end") for norm in wide[:2]]


def _norms(module: nn.Module) -> Iterator[tuple[str, nn.Module, int]]:
    for path, part in module.named_modules():
        name = type(part).__name__.lower()
        if not path or "norm" not in name or "batch" in name:
            continue
        shape = getattr(part, "normalized_shape", None)
        sizes = [p.shape[0] for p in part.parameters(recurse=False) if p.ndim == 1]
        if shape is not None or sizes:
            yield path, part, int(shape[-1]) if shape is not None else sizes[0]
