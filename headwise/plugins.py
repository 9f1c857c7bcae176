"""Extensions from installed packages: entry points of a group, which are imported when they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar

from headwise.errors import ArgumentError

T = TypeVar("T")


def found(group: str) -> dict[str, EntryPoint]:
    """Find the entry points of a group, by name."""
    return {each.name: each for each in entry_points(group=group)}


def load(entry: EntryPoint) -> Any:
    """Import the object that an entry point names.

    Raises ArgumentError if the import fails, or if the object has another name than the entry point.
    """
    try:
        value = entry.load()
    except Exception as cause:  # the code of another package
        said = f"{type(cause).__name__}: {cause}"
        raise ArgumentError(
            f"the entry point {entry.name!r} of {entry.group} cannot be imported from {entry.value}: {said}"
        ) from cause
    if (name := getattr(value, "name", entry.name)) != entry.name:
        raise ArgumentError(f"the entry point {entry.name!r} stands for {entry.value}, whose name is {name!r}")
    return value


class Plugins(MutableMapping[str, T]):
    """A dict of extensions by name: headwise's own ones, extensions that code adds, and the entry points of a group.

    Args:
        group: the group of entry points. Reading a value imports an entry point, reading its name does not.
        kind: the class of the values.
        own: the extensions of headwise; an entry point does not replace them.

    Reading a value raises ArgumentError if an entry point cannot be imported, or is not a `kind`.
    """

    def __init__(self, group: str, kind: type[T], own: Mapping[str, T]) -> None:
        self.group, self.kind = group, kind
        self._values: dict[str, T | EntryPoint] = dict(own)
        self._is_searched = False

    def __getitem__(self, name: str) -> T:
        value = self._all()[name]
        if isinstance(value, EntryPoint):
            entry, value = value, load(value)
            if not isinstance(value, self.kind):
                raise ArgumentError(
                    f"the entry point {name!r} of {self.group}: expected a {self.kind.__name__}. "
                    f"Received: {entry.value}, a {type(value).__name__}"
                )
            self._values[name] = value
        return value

    def __setitem__(self, name: str, value: T) -> None:
        self._values[name] = value

    def __delitem__(self, name: str) -> None:
        del self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._all()))

    def __len__(self) -> int:
        return len(self._all())

    def __contains__(self, name: object) -> bool:
        return name in self._all()

    def usable(self) -> list[T]:
        """List the values, without the entry points that are broken."""
        values = []
        for name in self:
            with suppress(ArgumentError):  # raised again when this extension is requested
                values.append(self[name])
        return values

    def _all(self) -> dict[str, T | EntryPoint]:
        if not self._is_searched:  # not at the import of headwise, because it takes a while
            self._values |= {name: each for name, each in found(self.group).items() if name not in self._values}
            self._is_searched = True
        return self._values
