"""Which of a model's attention a person means: by path, by part of a path, or by pattern."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence

from headwise.errors import RecordError

UNNAMED = "attention"  # the name of an attention that nobody gave one


def choose(names: Sequence[str], wanted: str) -> list[str]:
    """The names that `wanted` means, of the first of these kinds that has any, in order.

        "encoder.layer.3.attention"   that very name
        "encoder.layer.3"             what lies under that path
        "layer.3", "self"             what has these components next to one another, somewhere in its path
        "*.self_attn", "*.layer.[0-3]"   a pattern of the whole name, or of a path that it lies under

    Raises RecordError, with the names that come near, if there is none.
    """
    if wanted in names:
        return [wanted]
    if any(character in wanted for character in "*?["):
        found = [name for name in names if any(fnmatch.fnmatchcase(path, wanted) for path in _paths(name))]
    else:
        run = f".{wanted}."
        found = [name for name in names if f".{name}.".startswith(run)]
        found = found or [name for name in names if run in f".{name}."]
    if not found:
        near = difflib.get_close_matches(wanted, names, n=4, cutoff=0.4)
        raise RecordError(
            f"no attention was seen at {wanted!r}. {'Near it' if near else 'There is'}: {listed(near or names)}"
        )
    return found


def listed(names: Sequence[str], most: int = 8) -> str:
    """Some names in a sentence."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def legend(names: Sequence[tuple[int, str]]) -> list[str]:
    """What the numbers of layers stand for, those that differ by numbers alone in one line.

    >>> legend([(0, "encoder.0.attn"), (1, "encoder.1.attn"), (2, "decoder.0.attn")])
    ['0, 1: encoder.*.attn', '2: decoder.0.attn']
    """
    alike: dict[str, list[tuple[int, str]]] = {}
    for number, name in names:
        alike.setdefault(".".join("*" if part.isdecimal() else part for part in name.split(".")), []).append(
            (number, name)
        )
    return [
        f"{numbered([number for number, _ in found])}: {pattern if len(found) > 1 else found[0][1]}"
        for pattern, found in alike.items()
    ]


def numbered(numbers: Sequence[int]) -> str:
    """Some numbers, in order, in a sentence."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} … {numbers[-1]}"
    if len(numbers) > 6:
        return f"{', '.join(map(str, numbers[:4]))} … {numbers[-1]}"
    return ", ".join(map(str, numbers))


def stack_of(name: str) -> str:
    """The path with its numbers left open: the sites of one stack of layers have it in common."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", name)


def _paths(name: str) -> list[str]:
    """The name, and every path that it lies under."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
