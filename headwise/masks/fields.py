"""The fields of a mask's dataclass, each declared once: for files, for repr, and for the sizes that a mask is made for.

class Documents(Mask, kind="documents"):
    ids: Tensor = table("Bk", *INTEGERS)
    offset: int | None = number(optional=True)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from headwise.errors import MaskError, brief

INTEGERS = (torch.int64, torch.int32)
FARTHEST = 2**48  # the largest offset or distance that a file may hold
WRITTEN_OUT = 32  # the cells of the largest table that repr writes out
_DECLARED = "headwise"


@dataclasses.dataclass(frozen=True)
class Source:
    """Two functions by which fields are read from a file: one finds a tensor by name, one makes a mask from a tree."""

    tensor: Callable[[str], Tensor]  # raises a HeadwiseError for an unknown name
    mask: Callable[[object], Any]


@dataclasses.dataclass(frozen=True)
class Number:
    """Declares a field that is an int from `least` to `most`, or None if it is `optional`."""

    least: int = -FARTHEST
    most: int = FARTHEST
    optional: bool = False

    def read(self, value: object, what: str, source: Source) -> int | None:
        """Return `value` if it fits this declaration; else raise MaskError, whose message begins with `what`."""
        if value is None and self.optional:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not self.least <= value <= self.most:
            raise MaskError(
                f"{what}: expected a whole number from {self.least} to {self.most}. Received: {received(value)}"
            )
        return value


@dataclasses.dataclass(frozen=True)
class Table:
    """Declares a field that is a tensor of one of `dtypes`, with one dimension per letter of `dims`.

    A dimension whose letter is a capital must not be empty. B and H are the examples and heads of the mask: a size of 1
    serves all of them. q and k are the numbers of queries and keys of a call.
    """

    dims: str
    dtypes: tuple[torch.dtype, ...]

    def read(self, value: object, what: str, source: Source) -> Tensor:
        """Return the tensor whose name is `value` if it fits this declaration; else raise MaskError."""
        if not isinstance(value, str):
            raise MaskError(f"{what}: expected the name of a tensor. Received: {received(value)}")
        found = source.tensor(value)
        sizes = zip(self.dims, found.shape, strict=False)
        if found.ndim != len(self.dims) or any(dim.isupper() and not size for dim, size in sizes):
            raise MaskError(f"{what}: expected a tensor [{', '.join(self.dims)}]. Received: {list(found.shape)}")
        if found.dtype not in self.dtypes:
            raise MaskError(f"{what}: expected {' or '.join(map(str, self.dtypes))}. Received: {found.dtype}")
        return found

    def show(self, name: str, values: Tensor) -> str:
        """Write a table as an argument in the mask's repr; `<name shape>` if it is large or not on the CPU."""
        if not isinstance(values, Tensor) or values.device.type != "cpu" or not 0 < values.numel() <= WRITTEN_OUT:
            return f"<{name} {list(values.shape)}>"
        while values.ndim > 1 and values.shape[0] == 1 and self.dims[-values.ndim] in "BH":
            values = values[0]
        if self.dims == "B" and len(values) == 1:
            return repr(int(values))
        written = repr(values.long().tolist())
        return f"torch.tensor({written}).bool()" if len(self.dims) == 4 else written


@dataclasses.dataclass(frozen=True)
class Parts:
    """Declares a field that is a mask, or a tuple of at least one mask if `several` is True."""

    several: bool

    def read(self, value: object, what: str, source: Source) -> Any:
        """Make the masks that trees (nested dicts from a file) describe; raise MaskError if they are no such trees."""
        if not self.several:
            return source.mask(value)
        if not isinstance(value, list) or not value:
            raise MaskError(f"{what}: expected a list of at least one mask. Received: {received(value)}")
        return tuple(source.mask(part) for part in value)


def number(least: int = -FARTHEST, most: int = FARTHEST, *, optional: bool = False) -> Any:
    """Declare a dataclass field that holds an int; if it is `optional`, its default is None."""
    declared = Number(least, most, optional)
    metadata = {_DECLARED: declared}
    return dataclasses.field(default=None, metadata=metadata) if optional else dataclasses.field(metadata=metadata)


def table(dims: str, *dtypes: torch.dtype) -> Any:
    """Declare a dataclass field that holds a tensor: see `Table`."""
    return dataclasses.field(metadata={_DECLARED: Table(dims, dtypes)})


def parts(*, several: bool) -> Any:
    """Declare a dataclass field that holds a mask, or a tuple of masks if `several` is True."""
    return dataclasses.field(metadata={_DECLARED: Parts(several)})


def declared_in(body: Mapping[str, Any]) -> dict[str, Number | Table | Parts]:
    """Find the fields that the body (namespace) of a class declares with `number`, `table` or `parts`, by name."""
    found = {name: x.metadata for name, x in body.items() if isinstance(x, dataclasses.Field)}
    return {name: metadata[_DECLARED] for name, metadata in found.items() if _DECLARED in metadata}


def received(value: object) -> str:
    """Write a value from a file, which may have any type and size, in a few characters, for an error message."""
    return brief(value) if value is None or isinstance(value, (str, int, float)) else type(value).__name__
