"""The dimensions of an attention: heads and widths of heads, keys and values, as far as the weights allow."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence


@dataclasses.dataclass(frozen=True)
class Dimensions:
    """The dimensions of an attention."""

    heads: int
    kv_heads: int
    head: int  # D
    value_head: int  # E
    query: int  # M of each input
    key: int
    value: int
    output: int

    def shape(self, slot: str) -> dict[str, int]:
        """The axes of a matrix or bias: letter -> length, in the order of the standard form."""
        role, kind = slot.split(".")
        if role == "o":
            return {"o": self.output} if kind == "bias" else {"o": self.output, "h": self.heads, "d": self.value_head}
        heads = self.heads if role == "q" else self.kv_heads
        axes = {"h": heads, "d": self.value_head if role == "v" else self.head}
        return axes if kind == "bias" else {**axes, "m": {"q": self.query, "k": self.key, "v": self.value}[role]}


def possible(
    held: Mapping[str, int],
    *,
    heads: int,
    kv_heads: int | None,
    said: Sequence[int],
    widths: tuple[int, int, int, int],
) -> list[Dimensions]:
    """All dimensions that fit the numbers of weights, the most likely first; guesses if none fits.

    Args:
        held: how many numbers there are in the weights of "q", "k", "v", "kv", "qkv", "o".
        said: head widths from attributes.
        widths: of query, key, value and output.
    """
    query, key, value, output = widths
    columns = [held["q"] / (heads * query)] if "q" in held else []
    columns += [held["qkv"] / (3 * heads * query)] if "qkv" in held else []
    whole = [int(x) for x in columns if x == int(x)]
    head_widths = list(dict.fromkeys((*whole, *said, *([query // heads] if query % heads == 0 else []))))
    groups = [kv_heads] if kv_heads else [n for n in range(heads, 0, -1) if heads % n == 0]
    guesses = [
        Dimensions(heads, g, d, e, query, key, value, output)
        for d in head_widths
        for g in groups
        for e in _value_widths(held, heads, g, d, value, output)
        if d > 0
    ]
    fitting = [each for each in guesses if all(_fits(each, roles, held[roles]) for roles in held if roles != "o")]
    fitting.sort(key=lambda each: "o" in held and not _fits(each, "o", held["o"]))
    return fitting or [each for each in guesses if each.head == each.value_head and each.kv_heads == groups[0]]


def _value_widths(held: Mapping[str, int], heads: int, groups: int, head: int, value: int, output: int) -> list[int]:
    found = [head]
    for roles, others in (("v", groups * value), ("o", heads * output)):
        if roles in held and held[roles] % others == 0:
            found.append(held[roles] // others)
    return list(dict.fromkeys(found))


def _fits(sizes: Dimensions, roles: str, held: int) -> bool:
    """Whether weights of these sizes have this many numbers; a small matrix shared by all heads also counts."""
    forms = [sizes.shape(f"{role}.weight") for role in roles]
    if held == sum(math.prod(form.values()) for form in forms):
        return True
    if len(forms) > 1 or "m" not in forms[0]:
        return False
    return held == forms[0]["d"] ** 2 and forms[0]["m"] == forms[0]["h"] * forms[0]["d"]
