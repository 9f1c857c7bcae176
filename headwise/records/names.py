"""Layers by name: which layers a user's choice means, and how names and numbers of layers are printed."""

from __future__ import annotations

import difflib
import fnmatch
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headwise.errors import ArgumentError, RecordError, brief

if TYPE_CHECKING:
    from headwise.records.record import AttentionRecord

UNNAMED = "attention"  # the name of an attention that no module computed

Choice = int | str | Sequence[int | str]


def choose(names: Sequence[str], choice: Choice) -> list[str]:
    """Return the names of the layers that a choice means, in the order of `names`.

        3, -1                            by number, in the order in which the layers were first seen; -1 is the last
        "encoder.layer.3.attention"      the layer of exactly this name
        "encoder.layer.3"                the layers under this path
        "layer.3", "self"                the layers with these components next to one another in their path
        "*.self_attn", "*.layer.[0-3]"   the layers whose name, or a path that they are under, matches this pattern
        ["*.self_attn", -1]              several of these

    `Seen.only`, `Seen[...]` and `watch(only=)` select layers in this way. A string is tried as each of these kinds, in
    this order, until one matches a layer.

    Raises:
        ArgumentError: a choice of another type.
        RecordError: a number, path or pattern that matches no layer; the message lists the layers that exist.
    """
    chosen, unmatched = select(names, check_choice(choice))
    if unmatched:
        raise RecordError(unmatched[0])
    return chosen


def check_choice(choice: Any) -> list[int | str]:
    """Return the ints and strings of a choice as a list. ArgumentError if it is empty or holds anything else."""
    several = list(choice) if isinstance(choice, (list, tuple, set, frozenset, range)) else [choice]
    if not several:
        raise ArgumentError(
            "layers: expected at least one layer. Received: layers=[]. To take all, leave the choice out"
        )
    try:
        return [each if isinstance(each, str) else operator.index(each) for each in several]
    except TypeError:
        raise ArgumentError(
            "layers: expected a layer's number, its name, a part or pattern of it, or a list of these. "
            f"Received: layers={brief(choice)}"
        ) from None


def select(names: Sequence[str], choice: Sequence[int | str]) -> tuple[list[str], list[str]]:
    """Return (the layers that a checked choice means, in the order of `names`; a message for each unmatched entry)."""
    chosen: set[str] = set()
    unmatched = []
    for wanted in choice:
        if isinstance(wanted, str):
            found = _matching(names, wanted)
        else:
            found = [names[wanted]] if -len(names) <= wanted < len(names) else []
        chosen.update(found)
        if not found and isinstance(wanted, str):
            near = difflib.get_close_matches(wanted, names, n=4, cutoff=0.4)
            there = f"There is: {listed(names)}" if names else "There was none"
            there = f"The nearest: {listed(near)}" if near else there
            unmatched.append(f"no attention was seen at {wanted!r}. {there}")
        elif not found:
            unmatched.append(f"layers are numbered 0 … {len(names) - 1}. Received: {wanted}")
    return [name for name in names if name in chosen], unmatched


def _matching(names: Sequence[str], wanted: str) -> list[str]:
    if wanted in names:
        return [wanted]
    if any(character in wanted for character in "*?["):
        return [name for name in names if any(fnmatch.fnmatchcase(path, wanted) for path in _paths(name))]
    part = f".{wanted}."
    under = [name for name in names if f".{name}.".startswith(part)]
    return under or [name for name in names if part in f".{name}."]


def name_of(record: AttentionRecord) -> str:
    """Return the name of a record's layer: the path of the module that computed its attention."""
    return record.site.name if record.site else UNNAMED


def listed(names: Sequence[str], most: int = 8) -> str:
    """Write at most `most` names for a sentence: "a, b and 3 more"."""
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def legend(names: Sequence[tuple[int, str]]) -> list[str]:
    """Write which name each layer number stands for; names that differ only in numbers are on one line.

    >>> legend([(0, "encoder.0.attn"), (1, "encoder.1.attn"), (2, "decoder.0.attn")])
    ['0, 1: encoder.*.attn', '2: decoder.0.attn']
    """
    alike: dict[str, list[tuple[int, str]]] = {}
    for number, name in names:
        alike.setdefault(name_stack(name), []).append((number, name))
    return [
        f"{numbered([number for number, _ in found])}: {pattern if len(found) > 1 else found[0][1]}"
        for pattern, found in alike.items()
    ]


def numbered(numbers: Sequence[int]) -> str:
    """Write some numbers, in order, for a sentence: "0 … 5" if they are consecutive, or "0, 3"."""
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]} … {numbers[-1]}"
    if len(numbers) > 6:
        return f"{', '.join(map(str, numbers[:4]))} … {numbers[-1]}"
    return ", ".join(map(str, numbers))


def name_stack(name: str) -> str:
    """Return a layer's path with "*" for its numbers: all layers of one stack then have the same name."""
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def _paths(name: str) -> list[str]:
    """Return the name of a layer, and the paths of the modules around it: "a.b.c", "a.b", "a"."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
