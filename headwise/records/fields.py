"""Turns dataclasses into plain data that JSON can hold, and back. Each value is checked against the type of its field.

The type of a field determines what a file may hold: str, bool, int, float, a Literal, another dataclass, a tuple of
these, a class for which the reader has a function that makes its objects (a Tensor), or None. The metadata of a field
may add:

    {"since": 3}           the version of the layout that added it; 1 by default (`headwise.records.saving`)
    {"dims": "BHQE"}       the dimensions of a tensor, in the letters of `headwise.shapes`
    {"broadcasts": True}   a tensor that may be stored without repetitions by broadcasting
    {"stored": False}      not in files
"""

from __future__ import annotations

import dataclasses
import functools
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from headwise.errors import RecordError
from headwise.masks.fields import received

T = TypeVar("T")
Check = Callable[[Any, "FieldReader"], Any]  # (the value in JSON, the reader) -> the value of the field; or RecordError


@dataclasses.dataclass(frozen=True)
class StoredField:
    """The description of a dataclass field for files: its name, type and default, and the version that added it."""

    name: str
    kind: Any  # its type
    default: Any  # dataclasses.MISSING: a file has to hold it
    since: int = 1
    dims: str = ""
    broadcasts: bool = False


@functools.cache
def stored_fields(cls: Any) -> dict[str, StoredField]:
    """Return, by name, the fields of a dataclass `cls` that are stored in files."""
    package = sys.modules[cls.__module__.rpartition(".")[0]]  # for names that a module imports only for its types
    kinds = typing.get_type_hints(cls, localns=vars(package))
    found = {}
    for field in dataclasses.fields(cls):
        if field.metadata.get("stored", True):
            kind, default = kinds[field.name], field.default
            if default is dataclasses.MISSING and types.NoneType in typing.get_args(kind):
                default = None
            more = {name: field.metadata[name] for name in ("since", "dims", "broadcasts") if name in field.metadata}
            found[field.name] = StoredField(field.name, kind, default, **more)
    return found


class FieldReader:
    """Makes dataclasses from the contents of a file.

    Args:
        special: for a class, the function that makes an object of the class from a JSON value, or raises a
            HeadwiseError.

    Attributes:
        ignored: the fields in the file that this version does not know, such as "Site.block".
    """

    def __init__(self, special: Mapping[Any, Callable[[Any], Any]]) -> None:
        self.special = special
        self.ignored: dict[str, None] = {}  # in their order, each once

    def read(self, cls: Callable[..., T], entry: object) -> T:
        """Make a `cls` from a JSON object, or from a list of its values in order. RecordError says what is wrong."""
        fields = stored_fields(cls)
        if isinstance(entry, list) and len(entry) >= sum(field.since == 1 for field in fields.values()):
            names = [*fields, *(f"[{i}]" for i in range(len(fields), len(entry)))]
            entry = dict(zip(names, entry, strict=False))
        return cls(**self.values(fields, entry, cls.__name__.strip("_")))

    def values(self, fields: Mapping[str, StoredField], entry: object, owner: str) -> dict[str, Any]:
        """Read the values of these fields from a JSON object, by name; `owner` is the class's name for messages."""
        if not isinstance(entry, dict):
            raise RecordError(f"expected what {owner} is made of. Received: {received(entry)}")
        self.ignored.update(dict.fromkeys(f"{owner}.{name}" for name in entry.keys() - fields.keys()))
        found = {}
        for name, field in fields.items():
            if name in entry:
                try:
                    found[name] = _check(field.kind)(entry[name], self)
                except RecordError as error:
                    raise RecordError(f"{name}: {error}") from error
            elif field.default is dataclasses.MISSING:
                raise RecordError(f"{name}: expected in every {owner}. Received: none")
            else:
                found[name] = field.default
        return found


@functools.cache
def _check(kind: Any) -> Check:
    """Return the function that makes a value of this type from a JSON value, or raises RecordError.

    Each function is made once, because a text has many tokens.
    """
    args = typing.get_args(kind)
    if types.NoneType in args:
        # (A number that may also be a trained tensor is a number in files.)
        inner = _check(next(each for each in args if each is not types.NoneType))
        return lambda value, reader: None if value is None else inner(value, reader)
    if typing.get_origin(kind) is typing.Literal:
        return lambda value, _: value if type(value) is str and value in args else _refuse(kind, value)
    if typing.get_origin(kind) is tuple:
        return _check_tuple(kind, args)
    if kind is float:
        return lambda value, _: (
            float(value) if type(value) in (int, float) and abs(value) <= 1e300 else _refuse(kind, value)
        )
    if kind in (str, bool, int, dict):
        return lambda value, _: value if type(value) is kind else _refuse(kind, value)
    return lambda value, reader: reader.special[kind](value) if kind in reader.special else reader.read(kind, value)


def _check_tuple(kind: Any, args: tuple[Any, ...]) -> Check:
    if args[-1] is Ellipsis:
        each = _check(args[0])
        return lambda value, reader: (
            tuple(each(x, reader) for x in value) if type(value) is list else _refuse(kind, value)
        )
    checks = [_check(arg) for arg in args]
    return lambda value, reader: (
        tuple(check(x, reader) for check, x in zip(checks, value, strict=True))
        if type(value) is list and len(value) == len(checks)
        else _refuse(kind, value)
    )


def _refuse(kind: Any, value: object) -> typing.NoReturn:
    expected = kind.__name__ if isinstance(kind, type) and not typing.get_args(kind) else str(kind)
    raise RecordError(f"expected {expected.replace('typing.', '')}. Received: {received(value)}")
