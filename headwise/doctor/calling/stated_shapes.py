"""Shapes that docstrings state for the arguments of forward: `pair: [B, N, N, c_z]`, `ids (batch, length)`.

A name for a size means the same size wherever it stands. Sizes of features are those that the constructor got.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from headwise.doctor.calling.forward_arguments import Maker, Sizes, noise, sides

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Interface
    from headwise.doctor.calling.spec import Spec

_BATCH = r"\*|1|(?:n_?)?[Bb](?:atch)?(?:_?s(?:i?z(?:e)?)?)?"
_SIZE = r"(?:\d+ ?\*? ?)?[A-Za-z]\w*(?:\s*[+-]\s*\d+)?|\d+"
_SHAPE = rf"[\[(]\s*((?:{_BATCH})(?:\s*,\s*(?:{_SIZE})){{0,4}})\s*,?\s*[\])]"
_SUM = re.compile(r"(?:(\d+) ?\*? ?)?([A-Za-z]\w*)\s*([+-])\s*(\d+)")  # N + 1, 2N - 1
_LENGTH = re.compile(r"[nltkqhw]|len(gth)?|time|steps?|seq\w*|\w*_len", re.IGNORECASE)
_FEATURES = re.compile(r"dim|feat|width|size$")
_IDS = re.compile(r"\b(ids?|indices|index|int(eger)?s?|int64|long|LongTensor)\b|\b0 (is|=|for) pad", re.IGNORECASE)
_INTEGERS = re.compile(r"^\W*(\w+ )?(int(eger)?s?|int64|long|LongTensor)\b")
_SHARE = re.compile(r"\[0(\.0)?, ?1(\.0)?\]|from 0 to 1|between 0 and 1", re.IGNORECASE)
_ONE_ID = re.compile(r"\b(item|token|word|candidate|categor\w*|user|product|movie)s?\b", re.IGNORECASE)
_BOOL = re.compile(r"\bbool|\bmask\b|\btrue\b|\bfalse\b", re.IGNORECASE)
_COUNT = re.compile(r"\b(number|count|lengths?)\b|how many", re.IGNORECASE)
# What a call begins with, in the place of learned numbers: these are queries, and no memory.
_BEGINS = re.compile(r"^(init|prev|slots?$|latents?$|quer(y|ies)$|states?$|h_?0$|c_?0$)")
_FREE = (4, 6, 8, 10)  # sizes that nothing states
_MOST = 32  # numbers of tokens for which values are drawn once, so that fewer tokens have the same values


@dataclasses.dataclass(frozen=True)
class Stated:
    """What is stated about one argument."""

    name: str
    shape: tuple[str, ...]  # of names and numbers, the batch first
    said: str  # the rest of the line, and what stands before the shape

    @property
    def counts(self) -> bool:
        """Whether it is how many tokens each example has."""
        named = re.match(r"(num|n)_", self.name) is not None
        return len(self.shape) == 1 and (named or bool(_COUNT.search(self.said)))

    def is_of_an_example(self, module: nn.Module) -> bool:
        """Whether it is [B], or [B, features] of a width that the constructor states, in a module of ids."""
        if not any(isinstance(part, nn.Embedding) for part in module.modules()):
            return False
        featured = self.width(module) is not None and not self.shape[-1].isdigit()
        return len(self.shape) == 1 or (len(self.shape) == 2 and featured)

    def width(self, module: nn.Module) -> int | None:
        """The last size, if it is one of features whose number is known."""
        last = self.shape[-1]
        if len(self.shape) < 2 or _LENGTH.fullmatch(last):
            return None
        if len(self.shape) == 2 and not _FEATURES.search(last):
            return None
        return int(last) if last.isdigit() else _known(module).get(last.lower())


def stated_shapes(module: nn.Module, names: Iterable[str]) -> dict[str, Stated]:
    """By these names of arguments, shapes of up to five sizes whose first is the batch."""
    kind = type(module)
    text = "\n".join(inspect.getdoc(x) or "" for x in (kind, kind.forward, kind.__init__))
    names = list(names)
    another = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")
    found: dict[str, Stated] = {}
    for name in names:
        several = rf"(?<![\w.]){re.escape(name)}\b(?:`*\s*,\s*`*\w+)*"  # item, category: [B]
        for stated in re.finditer(rf"{several}([^\n]{{0,60}}?){_SHAPE}([^\n]*)", text):
            if name not in found and not another.search(stated[1]):
                shape = tuple(size.strip() for size in stated[2].split(","))
                found[name] = Stated(name, shape, stated[1] + another.split(stated[3])[0])
    return found


def other_memories(interface: Interface, spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Arguments that a call may leave out and that are stated to be sequences [B, N, M], and how to call the module
    with each of them as its memory. The usual memory, if there is one, then holds the same numbers in every call.
    """
    way = interface.way
    taken = {name for _, name in way.slots} | {name for name, _ in way.extras}
    free = {n for n, role in interface.roles.items() if role in ("unknown", "other", "memory")} - taken
    known = dict(way.slots).get("memory")
    if way.takes not in ("self", "memory") or (known is not None and "." in known):
        return
    for name, shape in stated_shapes(interface.module, sorted(free)).items():
        begins = _BEGINS.search(name) or re.search(r"\binitial", shape.said, re.IGNORECASE)
        if len(shape.shape) == 3 and shape.width(interface.module) and not begins:
            arguments = {} if known is None else {known: interface.inputs().key}
            roles = {name: "memory", **({} if known is None else {known: "other"})}
            roles, arguments = {**spec.roles, **roles}, {**spec.arguments, **arguments}
            yield name, dataclasses.replace(spec, takes="memory", roles=roles, arguments=arguments)


def maker(stated: Stated, of_inputs: Mapping[str, Stated], module: nn.Module, *, ids: bool = False) -> Maker:
    """A maker of values of a stated shape, where `of_inputs` states those of "query" and "memory".

    Ids are those of tokens, masks allow everything, and other values are N(0, 1), the same for each example.

    Args:
        ids: they are ids, whatever is said of them.
    """
    known = _known(module)
    rows = [part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding)]

    def make(at: Sizes) -> Tensor:
        lengths: dict[str, int] = {}
        for role, length in (("memory", at.keys), ("query", at.queries)):
            if role in of_inputs and len(of_inputs[role].shape) == 2 and rows:  # of ids
                lengths[of_inputs[role].shape[1]] = length
            elif role in of_inputs and len(of_inputs[role].shape) > 2:
                lengths |= _of_input(of_inputs[role].shape[1:], length, at.width if role == "query" else None)
        if "query" not in of_inputs and len(stated.shape) > 2 and _LENGTH.fullmatch(stated.shape[1]):
            lengths.setdefault(stated.shape[1], at.queries)  # bbox: [B, N, 4], where nothing is said of the ids
        lengths = _with_bases(lengths)
        sizes, most, free = [], [], iter(_FREE)
        for name in stated.shape[1:]:
            if (known_sum := _sum(name, lengths)) is not None:
                lengths.setdefault(name, known_sum)
            if name not in lengths:
                lengths[name] = int(name) if name.isdigit() else _size_of(name, known) or next(free)
                most.append(lengths[name])
            else:
                most.append(max(lengths[name], _MOST if lengths[name] in (at.queries, at.keys) else 1))
            sizes.append(lengths[name])
        inside = tuple(slice(size) for size in sizes)
        one_id = not sizes and _ONE_ID.search(f"{stated.name} {stated.said}")
        if rows and (ids or one_id or _IDS.search(stated.said)):
            one = (1 + torch.arange(math.prod(most)).reshape(most) % max(min(rows) - 1, 1))[inside]
        elif _BOOL.search(stated.said):
            one = torch.ones(sizes, dtype=torch.bool)
        elif sizes and _INTEGERS.search(stated.said):  # which of several, of which there is one
            one = torch.ones(sizes, dtype=torch.int64)
        else:
            one = noise(at, 1, *most)[0][inside]
            one = one.sigmoid() if _SHARE.search(stated.said) else one
        return one.to(at.device).repeat(1 if stated.shape[0] == "1" else at.batch, *(1 for _ in sizes))

    return make


def _of_input(shape: tuple[str, ...], length: int, width: int | None) -> dict[str, int]:
    """The sizes of an input with so many tokens: of a map, of a single row of tokens, or of a sequence."""
    height, across = (next((x for x in shape if x.lower() in names), "") for names in (("h", "height"), ("w", "width")))
    if height and across:
        features = {} if width is None else {x: width for x in shape if x not in (height, across)}
        return {**features, **dict(zip((height, across), sides(length), strict=True))}
    *before, last, features_ = shape
    return {**dict.fromkeys(before, 1), **({} if width is None else {features_: width}), last: length}


def _with_bases(lengths: dict[str, int]) -> dict[str, int]:
    """Sizes by name, and of "N + 1" also that of N."""
    sums = ((_base(name), size) for name, size in lengths.items())
    return {**{base[0]: size - base[1] for base, size in sums if base and base[2] == 1}, **lengths}


def _sum(name: str, lengths: dict[str, int]) -> int | None:
    """The size of "N + 1" where that of N is known."""
    base = _base(name)
    return base[2] * lengths[base[0]] + base[1] if base and base[0] in lengths else None


def _base(name: str) -> tuple[str, int, int] | None:
    """N, 1 and 1 of "N + 1"; N, -1 and 2 of "2N - 1"; None for a plain size."""
    match = _SUM.fullmatch(name)
    return match and (match[2], int(f"{match[3]}{match[4]}"), int(match[1] or 1))


def _size_of(name: str, known: Mapping[str, int]) -> int | None:
    """The size of that name, or the only one that begins with its letter: C of `cond_dim`."""
    begun = [size for other, size in known.items() if other[0] == name.lower()]
    return known.get(name.lower()) or (begun[0] if len(begun) == 1 else None)


def _known(module: nn.Module) -> dict[str, int]:
    """Sizes by their names in lower case: attributes, and defaults of the constructor."""
    written = inspect.signature(type(module).__init__).parameters
    known = {name.lower(): x.default for name, x in written.items() if type(x.default) is int}
    return known | {name.lower(): x for name, x in vars(module).items() if type(x) is int}
