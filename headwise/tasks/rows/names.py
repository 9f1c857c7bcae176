"""Names of columns. Whatever is written beside the columns of an input gets other names, so that nothing is lost."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from headwise.language import Sentence


def make_different(names: Iterable[Any]) -> tuple[str, ...]:
    """Make names differ, as text: a second "text" becomes "text.2"."""
    found: dict[str, None] = {}
    for name in names:
        found[_number([name if isinstance(name, str) else str(name)], found)[0]] = None
    return tuple(found)


def name_beside(names: Sequence[str], given: Collection[str]) -> dict[str, str]:
    """Name the columns of predictions beside the columns `given`. Returns a dict: name -> the name of its column.

    Beside a column "label" the prediction "label" is called "predicted label". If that is there too, from another
    model, all predictions of this model get the same number: "predicted label.2", "probability.2".
    """
    told = make_different(Sentence("predicted {name}").format(name=name) if name in given else name for name in names)
    return dict(zip(names, _number(told, given), strict=True))


def note_renamed(given: Iterable[Any], names: Iterable[str]) -> tuple[str, ...]:
    """Make a sentence for each column that `make_different` gave another name."""
    return tuple(
        Sentence("column {name!r} is there more than once: the later one is called {new!r}").format(
            name=str(name), new=new
        )
        for name, new in zip(given, names, strict=True)
        if str(name) != new
    )


def _number(names: Sequence[str], taken: Collection[str]) -> list[str]:
    """Return the names or, if one of them is taken, all of them with the first number with which none is taken."""
    found, number = list(names), 1
    while any(name in taken for name in found):
        number += 1
        found = [f"{name}.{number}" for name in names]
    return found
