"""Reads and checks a request of the live page to run its model, as JSON: a prompt, edits and a position.

{"prompt": "the cat", "position": null,
 "edits": [{"kind": "ablate", "layer": 0, "heads": [1]},
           {"kind": "block", "layer": "all", "heads": "all", "query": 5, "key": 2}]}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from headwise.edits import Edit, ablate, block
from headwise.errors import ArgumentError, brief
from headwise.files import parsed
from headwise.records import AttentionRecord, Seen
from headwise.records.names import name_of

MOST_CHARACTERS = 20_000  # of a prompt
MOST_EDITS = 100

ALL = "all"


@dataclass(frozen=True)
class Change:
    """One edit that a reader made on the page: heads switched off, or a query that may not attend to a key."""

    kind: Literal["ablate", "block"]
    layer: int | None  # the index of the layer in `seen.layers`; None = all layers
    heads: tuple[int, ...] | None  # None = all
    query: int = 0
    key: int = 0

    def told(self) -> dict[str, Any]:
        """Return the edit as JSON data, in the form that `read_asked` reads."""
        heads = ALL if self.heads is None else list(self.heads)
        found = {"kind": self.kind, "layer": ALL if self.layer is None else self.layer, "heads": heads}
        return found if self.kind == "ablate" else {**found, "query": self.query, "key": self.key}


@dataclass(frozen=True)
class Asked:
    """A request of the page: a prompt, edits, and the position after which the next token is predicted."""

    prompt: str
    changes: tuple[Change, ...] = ()
    position: int | None = None  # of the token after which the next token is predicted; None = the last token


def read_asked(body: bytes) -> Asked:
    """Read a request from its body, JSON. Raises ArgumentError, which says what was expected."""
    try:
        told = parsed(json.loads, body.decode())
    except ValueError as error:
        raise ArgumentError(f"run: expected JSON. Received: {brief(body[:40])} ({error})") from None
    if not isinstance(told, dict):
        raise ArgumentError(f"run: expected a JSON object with a prompt. Received: {type(told).__name__}")
    prompt, edits, position = told.get("prompt"), told.get("edits", []), told.get("position")
    if not isinstance(prompt, str):
        raise ArgumentError(f"prompt: expected a text. Received: {brief(prompt)}")
    check_prompt(prompt)
    if not isinstance(edits, list) or len(edits) > MOST_EDITS:
        received = len(edits) if isinstance(edits, list) else brief(edits)
        raise ArgumentError(f"edits: expected a list of at most {MOST_EDITS}. Received: {received}")
    if position is not None:
        position = _whole(position, "position")
    return Asked(prompt, tuple(dict.fromkeys(_change(each) for each in edits)), position)


def check_prompt(prompt: str) -> None:
    """Raise ArgumentError for a prompt without a word, or with too many characters."""
    if not prompt.strip():
        raise ArgumentError("The prompt is empty: expected at least one word.")
    if len(prompt) > MOST_CHARACTERS:
        raise ArgumentError(
            f"The prompt is too long: expected at most {MOST_CHARACTERS:,} characters. Received: {len(prompt):,}"
        )


def make_edits(changes: Sequence[Change], seen: Seen) -> list[Edit]:
    """Turn changes on the page into edits of `headwise.edits`. `seen`: records of the model's attention.

    Raises ArgumentError for a layer, a head or a position that the model does not have.
    """
    records = {name_of(record): record for record in seen}
    off: dict[str, set[int]] = {}  # the heads of each layer, in one edit: two edits may not set the output of one head
    blocks: list[Edit] = []
    for each in changes:
        heads = None if each.heads is None else list(each.heads)
        names = _layers(each, records)
        if each.kind == "ablate":
            for name in names:
                every = range(records[name].shape[1]) if heads is None else heads
                off.setdefault(name, set()).update(every)
        else:
            where = "*" if each.layer is None else names[0]
            blocks.append(block(where, queries=each.query, keys=each.key, heads=heads))
    return [*(ablate(name, heads=sorted(heads)) for name, heads in off.items()), *blocks]


def check_position(position: int, count: int, what: str) -> None:
    """Raise ArgumentError for a position outside of the prompt of `count` tokens. `what`: its name in the message."""
    if position >= count:
        raise ArgumentError(
            f"{what}: the prompt has {count} tokens, numbered 0 … {count - 1}. Received: {what}={position}"
        )


def _layers(change: Change, records: dict[str, AttentionRecord]) -> list[str]:
    """Return the names of the layers that a change selects, after checks of all its numbers."""
    names = list(records)
    if change.layer is not None:
        if change.layer >= len(names):
            raise ArgumentError(f"layer: layers are numbered 0 … {len(names) - 1}. Received: layer={change.layer}")
        names = [names[change.layer]]
    for name in names:
        _, count, q_len, k_len = records[name].shape
        for head in change.heads or ():
            if head >= count:
                raise ArgumentError(f"heads: heads of {name} are numbered 0 … {count - 1}. Received: {head}")
        if change.kind == "block":
            check_position(change.query, q_len, "query")
            check_position(change.key, k_len, "key")
    return names


def _change(told: Any) -> Change:
    if not isinstance(told, dict) or told.get("kind") not in ("ablate", "block"):
        raise ArgumentError(f'edits: expected {{"kind": "ablate" or "block", …}}. Received: {brief(told)}')
    layer: int | None = _read(told, "layer", _whole)
    heads: tuple[int, ...] | None = _read(told, "heads", _heads)
    if told["kind"] == "ablate":
        return Change("ablate", layer, heads)
    return Change("block", layer, heads, *(_whole(told.get(name), name) for name in ("query", "key")))


def _read(told: dict[str, Any], name: str, read: Callable[[Any, str], Any]) -> Any:
    """Read a value of an edit by its name; None if the edit says "all" (layers or heads)."""
    return None if told.get(name) == ALL else read(told.get(name), name)


def _heads(told: Any, name: str) -> tuple[int, ...]:
    if not isinstance(told, list) or not told:
        raise ArgumentError(f'{name}: expected a list of numbers, or "{ALL}". Received: {brief(told)}')
    return tuple(sorted({_whole(each, name) for each in told}))


def _whole(told: Any, name: str) -> int:
    if isinstance(told, bool) or not isinstance(told, int) or told < 0:
        also = f', or "{ALL}"' if name == "layer" else ""
        raise ArgumentError(f"{name}: expected a whole number from 0{also}. Received: {brief(told)}")
    return told
