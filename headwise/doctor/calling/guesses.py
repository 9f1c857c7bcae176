"""What is tried in a call: numbers of tokens, widths, and the values of other arguments, the most likely first."""

from __future__ import annotations

import itertools
import re
from typing import Any

from torch import Tensor, nn

from headwise.doctor.calling import forward_arguments as arguments
from headwise.doctor.calling import names, sizes, token_ids
from headwise.doctor.calling.example import Given
from headwise.doctor.calling.forward_arguments import Maker
from headwise.doctor.calling.signature import Parameter
from headwise.doctor.calling.spec import Spec
from headwise.doctor.calling.trial import KEYS, QUERIES
from headwise.doctor.calling.way import MAP

_LARGEST_SIDE = 32  # of a map


def lengths(module: nn.Module, given: Given, which: str, own: bool) -> list[tuple[int, int]]:
    """Numbers of queries and keys to try.

    Args:
        which: "differ" (another number of keys, if it may be), "alike", "any" (both), "one" (a single query), "stated"
            (by the constructor), "fixed" (that of the example, or of a table), "map" (of a map's rows and columns),
            "lone" (one token, whose keys are in a cache), "signal" (samples).
        own: it attends to its own tokens, so there are as many keys as queries.
    """
    x = given.input()
    if x is not None and given.holds_distances():
        return [(x.shape[1], given.memory(x).shape[1])]
    likely = [*([] if x is None else [x.shape[1]]), *sizes.lengths(module)[:5]]
    fixed = [(n, n) for n in dict.fromkeys(likely) if n != QUERIES]
    differ, alike, one = (QUERIES, KEYS), (QUERIES, QUERIES), (1, KEYS)
    if not own:
        return {"differ": [differ], "alike": [alike], "one": [one], "fixed": [one, *fixed]}.get(which, [differ, alike])
    if which == "map":
        return [(n, n) for n in _maps(module, given)]
    if which == "signal":
        return [(n, n)] if (n := sizes.samples(module)) else []
    if which == "stated":
        return [(n, n) for n in sizes.stated_lengths(module)]
    return {"differ": [alike], "any": [alike], "fixed": fixed, "lone": [(1, 1)]}.get(which, [])


def _maps(module: nn.Module, given: Given) -> list[int]:
    """Tokens of a map: that of the example, two windows, an image in patches, or what is usual."""
    maps = [x for x in given.values.values() if isinstance(x, Tensor) and x.ndim == 4]
    known = [x.shape[2] for x in maps if x.shape[2] in (x.shape[1], x.shape[3])]
    known += [2 * n for n in sizes.find(module, ["window_size", "window", "ws", "win_size"])]
    squares = [[n**2 for n in sides if n <= _LARGEST_SIDE] for sides in (known, [*sizes.image_sides(module), 8])]
    return list(dict.fromkeys((*squares[0], MAP, *squares[1])))


def widths(module: nn.Module, spec: Spec, given: Given, takes: str) -> list[tuple[int, int, int]]:
    """Widths of queries, keys and values to try."""
    guesses = [spec.width] if spec.width else sizes.widths(module)[:14]
    x = given.input() if given.rows() is None else given.rows()
    if x is not None and not spec.width:
        guesses = [x.shape[-1], *guesses]
    elif not spec.width and (table := getattr(module, token_ids.WIDTH, None)) is not None:
        guesses = list(dict.fromkeys([table, *guesses]))
    found = []
    for w in guesses:
        k, v = spec.key_width or w, spec.value_width or spec.key_width or w
        found.append((w, k, v))
    if takes != "self":
        ks = [spec.key_width] if spec.key_width else sizes.key_widths(module)[:3]
        vs = [spec.value_width] if spec.value_width else sizes.value_widths(module)[:2]
        more = [(w, k, v) for w in guesses[:3] for k in ks for v in (*vs, k)]
        found[1:1] = [t for t in dict.fromkeys(more) if t not in found]
    return found


def hinted_widths(
    said: str, widths: tuple[int, int, int], batch: int, q_len: int, k_len: int
) -> list[tuple[int, int, int]]:
    """Widths that an error message asks for: 'mat1 and mat2 shapes cannot be multiplied (15x64 and 32x96)'."""
    product = re.search(r"\((\d+)x(\d+) and (\d+)x(\d+)\)", said)
    norm = re.search(r"normalized_shape=\[(\d+)\].*got input of size\[(\d+), (\d+), (\d+)\]", said)
    if product:
        rows, had, wanted = int(product[1]), int(product[2]), int(product[3])
    elif norm:
        rows, had, wanted = int(norm[2]) * int(norm[3]), int(norm[4]), int(norm[1])
    else:
        return []
    if had not in widths:  # several inputs side by side: twice as wide an input is twice as wide there
        times = had // widths[0]
        fits = had == times * widths[0] and wanted % max(times, 1) == 0
        return [(wanted // times,) * 3] if fits else []
    q, k, v = widths
    if rows == batch * q_len and q_len != k_len:
        return [(wanted, k, v)]
    if rows == batch * k_len and q_len != k_len:
        return [(q, wanted, v), (q, k, wanted), (q, wanted, wanted)]
    return [(wanted, wanted, wanted)]


def hinted_lengths(said: str) -> list[int]:
    """Numbers of tokens that an error may ask for: "shape '[-1, 20, 3, 64]' is invalid", or two sides of a map."""
    found = [int(n) for n in re.findall(r"(?<![\dx])\d+(?![\dx])", said)]
    squares = [a * b for a, b in itertools.pairwise(found) if a == b]
    return [n for n in dict.fromkeys((*squares, *found)) if 1 < n <= 1024][:8]


def makers(module: nn.Module, given: Given, p: Parameter, reader: nn.Module | None) -> list[Maker]:
    """Makers of one argument's value to try, that of the example among the first.

    Args:
        reader: the layer that reads this argument, if that is known: what it takes is tried first.
    """
    masks = [x.name for x in given.parameters if x.role in ("mask", "padding") and x.name != p.name]
    own = names.about_memory(p.name) is None and any(names.about_memory(name) for name in masks)
    query = next((x.name for x in given.parameters if x.role == "query"), "")
    own = own or (len(masks) > 0 and names.about(p.name, query) and not any(names.about(x, query) for x in masks))
    paired = arguments.in_neighbours(given.of(p.name))
    found = arguments.makers(p.name, p.role, p.annotation, module, own=own, neighbours=paired)
    if not p.required and p.role in ("mask", "padding"):
        found = found[:4]
    if reader is not None and p.role in ("unknown", "other", "positions", "query", "memory"):
        found[:0] = arguments.read_by(reader)
    value, x = given.of(p.name), given.input()
    if value is not None and x is not None:
        table = p.role == "positions" and isinstance(value, (tuple, list))
        inside = isinstance(value, Tensor) and value.shape[:1] != x.shape[:1] and x.shape[0] in value.shape[2:-1]
        first = p.role == "unknown" or (p.role == "positions" and _of_another_form(given, value, found))
        made = arguments.from_example(value, x, given.memory(x), sizes.heads(module) or 1, table=table)
        found.insert(0 if first or inside else 1, made)
    if value is None and p.name in given.values:
        found.insert(0, arguments.constant(None))
    return found


def _of_another_form(given: Given, value: Any, guesses: list[Maker]) -> bool:
    """Whether one table of real numbers, which the example passes, is laid out as no guess is."""
    x = given.input()
    if x is None or not isinstance(value, Tensor) or not value.is_floating_point():
        return False
    at = arguments.Sizes(x.shape[0], x.shape[1], given.memory(x).shape[1], x.shape[-1], x.dtype, x.device)
    made = [make(at) for make in guesses]
    return not any(isinstance(y, Tensor) and y.shape == value.shape and y.dtype == value.dtype for y in made)


def combinations(lists: list[list[Maker]]) -> list[tuple[Maker, ...]]:
    """Choices of one maker from each list, likely ones first: all pairs of two lists, else one list at a time."""
    if len(lists) <= 2:
        ranked = [list(enumerate(x[:40])) for x in lists]
        chosen = sorted(itertools.product(*ranked), key=lambda c: sum(i for i, _ in c))
        return [tuple(make for _, make in c) for c in chosen]
    first = [x[0] for x in lists]
    together = [tuple(x[min(i, len(x) - 1)] for x in lists) for i in range(max(map(len, lists)))]
    apart = [(*first[:i], make, *first[i + 1 :]) for i, x in enumerate(lists) for make in x[1:]]
    return [*together[:12], *apart]
