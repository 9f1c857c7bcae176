"""How linear maps can be read as projections of heads: separate, fused, listed, shared, raw tensors, in each layout."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from headwise.doctor.fitting.linear_maps import LinearMap


@dataclasses.dataclass(frozen=True, eq=False)
class Source:
    """Maps that together compute queries, keys and values: {"q": [map], "kv": [map]}; a list has one map per head."""

    parts: dict[str, list[LinearMap]]
    certain: bool

    @property
    def used(self) -> set[str]:
        return {m.path for maps in self.parts.values() for m in maps}

    @property
    def heads(self) -> int | None:
        longest = max((len(maps) for maps in self.parts.values()), default=1)
        return longest if longest > 1 else None

    @property
    def columns(self) -> int:
        """The number of columns of the queries in all heads together."""
        for letters, maps in self.parts.items():
            if "q" in letters:
                tensor = maps[0].tensor
                return tensor.shape[-1] // len(letters) if maps[0].oriented else max(tensor.shape)
        return 1

    def read(self, heads: int, kv_heads: int | None, widths: Mapping[str, int]) -> Iterator[Reading]:
        """Every way to read them; `widths` are those of the inputs of "q", "k" and "v"."""
        if self.heads is not None:
            yield from _listed(self, heads, widths)
        elif not self.parts:
            yield from _nothing(heads, widths)
        elif "qkv" in {"".join(sorted(letters, key="qkv".index)) for letters in self.parts}:
            yield from _fused(self, heads, kv_heads, widths)
            yield from _shared(self, heads, widths)
        else:
            yield from _separate(self, heads, kv_heads, widths)
            yield from _shared(self, heads, widths)


@dataclasses.dataclass(frozen=True, eq=False)
class Reading:
    """Projections of queries, keys and values, before an output projection is chosen."""

    weights: dict[str, Tensor]  # "q", "k", "v" -> [heads, in, columns]
    biases: dict[str, Tensor | None]
    names: dict[str, str]
    kind: str
    layout: str = ""
    certain: bool = True
    oriented: bool = True


def arranged(tensor: Tensor, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
    """[in, ...] read as [in, *sizes] in each order of the axes that is possible; returns [*sizes, in]."""
    rest = tensor.shape[1:]
    if math.prod(rest) != math.prod(sizes.values()):
        return
    ends = set(itertools.accumulate(rest, lambda a, b: a * b, initial=1))
    labels = list(sizes)
    shown: set[tuple[int, ...]] = set()
    for order in itertools.permutations(labels):
        shape = [sizes[label] for label in order]
        real = tuple(labels.index(label) for label in order if sizes[label] > 1)
        if real in shown or not ends <= set(itertools.accumulate(shape, lambda a, b: a * b, initial=1)):
            continue
        shown.add(real)
        back = [1 + order.index(label) for label in labels]
        usual = real == tuple(sorted(real))
        yield "" if usual else " ".join(order), tensor.reshape(tensor.shape[0], *shape).permute(*back, 0)


def arranged_bias(bias: Tensor | None, sizes: Mapping[str, int], layout: str) -> Tensor | None:
    """The bias, split in the same order as its weights."""
    if bias is None or bias.numel() != math.prod(sizes.values()):
        return None
    if not layout or bias.ndim == len(sizes):
        return bias.reshape(*sizes.values())
    order = layout.split()
    return bias.reshape(*[sizes[label] for label in order]).permute(*[order.index(label) for label in sizes])


def _head_first(tensor: Tensor) -> Tensor:
    return tensor.transpose(-1, -2)  # [h, d, in] -> [h, in, d]


def _separate(source: Source, heads: int, kv_heads: int | None, widths: Mapping[str, int]) -> Iterator[Reading]:
    """One map each, or one for queries and one for keys and values."""
    parts = {letters: maps[0] for letters, maps in source.parts.items()}
    missing = [role for role in "qkv" if not any(role in letters for letters in parts)]
    query = parts.get("q")
    if query is None:
        return
    for q_in in query.entered_by(widths["q"]):
        columns = q_in[0].numel()
        if columns % heads:
            continue
        d = columns // heads
        options: list[list[tuple[str, dict[str, Tensor], dict[str, Tensor | None]]]] = []
        for letters, m in parts.items():
            choices = []
            for tensor in m.entered_by(widths[letters[0]]):
                groups = _groups(letters, tensor[0].numel(), heads, kv_heads, d)
                if groups is None or (letters != "q" and tensor[0].numel() % (groups * len(letters))):
                    continue
                sizes = {"c": len(letters), "h": groups, "d": tensor[0].numel() // groups // len(letters)}
                if letters == "k" and sizes["d"] != d:
                    continue
                for layout, cut in arranged(tensor, sizes):
                    bias = arranged_bias(m.bias, sizes, layout)
                    weights = {role: _head_first(cut[i]) for i, role in enumerate(letters)}
                    biases = {role: None if bias is None else bias[i] for i, role in enumerate(letters)}
                    choices.append((layout, weights, biases))
            options.append(choices)
        names = {role: m.path for letters, m in parts.items() for role in letters}
        for picked in itertools.product(*options):
            layouts = {layout for layout, _, _ in picked}
            if len(parts) == 3 and len(layouts) > 1:  # all three have the same layout
                continue
            all_weights: dict[str, Tensor] = {}
            all_biases: dict[str, Tensor | None] = {}
            for _, weights, biases in picked:
                all_weights |= weights
                all_biases |= biases
            for role in missing:
                all_weights[role] = _identity(heads, widths[role])
                all_biases[role] = None
            if all_weights["q"].shape[-1] != all_weights["k"].shape[-1] or heads % all_weights["k"].shape[0]:
                continue
            if all_weights["k"].shape[0] != all_weights["v"].shape[0]:
                continue
            layout = ", ".join(sorted(layouts - {""}))
            yield Reading(
                all_weights,
                all_biases,
                names,
                "fused-kv" if len(parts) == 2 and not missing else "separate",
                layout,
                source.certain,
                all(m.oriented for m in parts.values()),
            )


def _groups(letters: str, columns: int, heads: int, kv_heads: int | None, d: int) -> int | None:
    """How many heads a projection with this many columns has, if the queries have `heads` of d columns."""
    if letters == "q":
        return heads
    if kv_heads is not None and columns % (kv_heads * len(letters)) == 0:
        return kv_heads
    each = columns // len(letters)
    if "k" in letters:
        return each // d if each % d == 0 and each // d and heads % (each // d) == 0 else None
    return each // d if each % d == 0 and each < heads * d and heads % max(each // d, 1) == 0 else heads


def _identity(heads: int, width: int) -> Tensor:
    """Without a projection, each head takes its own columns of the input."""
    if width % heads:
        heads = 1
    eye = torch.eye(width, dtype=torch.float64)
    return eye.reshape(width, heads, width // heads).transpose(0, 1)


def _nothing(heads: int, widths: Mapping[str, int]) -> Iterator[Reading]:
    """Attention without projections: a function of queries, keys and values in a module."""
    if widths["q"] == widths["k"] and widths["q"] % heads == 0 and widths["v"] % heads == 0:
        weights = {role: _identity(heads, widths[role]) for role in "qkv"}
        yield Reading(weights, dict.fromkeys("qkv"), {}, "none")


def _shared(source: Source, heads: int, widths: Mapping[str, int]) -> Iterator[Reading]:
    """Small square maps applied in the same way to the columns of every head, after the input was split into heads."""
    weights: dict[str, Tensor] = {}
    biases: dict[str, Tensor | None] = {}
    names: dict[str, str] = {}
    oriented = True
    for letters, (m, *_) in source.parts.items():
        d = widths[letters[0]] // heads
        tensor = m.tensor if m.oriented or m.tensor.ndim != 2 else m.tensor.t()
        if heads == 1 or tuple(tensor.shape) != (d, d * len(letters)):
            return
        oriented &= m.oriented
        for i, role in enumerate(letters):
            own = slice(i * d, (i + 1) * d)
            whole = torch.zeros(heads, heads * d, d, dtype=torch.float64)
            for h in range(heads):
                whole[h, h * d : (h + 1) * d] = tensor[:, own]
            weights[role], names[role] = whole, m.path
            biases[role] = None if m.bias is None else m.bias[own].expand(heads, -1)
    if set(weights) == set("qkv"):
        yield Reading(weights, biases, names, "shared", "", source.certain, oriented)


def _listed(source: Source, heads: int, widths: Mapping[str, int]) -> Iterator[Reading]:
    """A list of heads, each with its own maps."""
    weights: dict[str, Tensor] = {}
    biases: dict[str, Tensor | None] = {}
    for role in "qkv":
        each = [next(m.entered_by(widths[role]), None) for m in source.parts[role]]
        tensors = [tensor for tensor in each if tensor is not None and tensor.ndim == 2]
        if len(tensors) != heads or len({tensor.shape for tensor in tensors}) != 1:
            return
        weights[role] = torch.stack(tensors)
        some = [m.bias for m in source.parts[role] if m.bias is not None]
        biases[role] = torch.stack(some) if len(some) == heads else None
    names = {role: source.parts[role][0].path for role in "qkv"}
    yield Reading(weights, biases, names, "listed", "", source.certain, True)


def _fused(source: Source, heads: int, kv_heads: int | None, widths: Mapping[str, int]) -> Iterator[Reading]:
    """One matrix for all three: in thirds, head by head, or with fewer heads for keys and values."""
    ((letters, (m,)),) = source.parts.items()
    for tensor in m.entered_by(widths["q"]):
        columns = tensor[0].numel()
        names = dict.fromkeys("qkv", m.path)
        if columns % (3 * heads) == 0 and kv_heads in (None, heads):
            sizes = {"c": 3, "h": heads, "d": columns // 3 // heads}
            for layout, cut in arranged(tensor, sizes):
                bias = arranged_bias(m.bias, sizes, layout)
                weights = {role: _head_first(cut[i]) for i, role in enumerate(letters)}
                biases = {role: None if bias is None else bias[i] for i, role in enumerate(letters)}
                yield Reading(weights, biases, names, "fused", layout.replace("c", "3"), source.certain, m.oriented)
        for groups in [kv_heads] if kv_heads is not None else [n for n in range(1, heads) if heads % n == 0]:
            if groups == heads or columns % (heads + 2 * groups) or tensor.ndim != 2:
                continue
            d = columns // (heads + 2 * groups)
            yield _grouped(tensor, m, letters, (heads, groups, d), names, source.certain, by_group=False)
            yield _grouped(tensor, m, letters, (heads, groups, d), names, source.certain, by_group=True)


def _grouped(
    tensor: Tensor,
    m: LinearMap,
    letters: str,
    sizes: tuple[int, int, int],
    names: dict[str, str],
    certain: bool,
    *,
    by_group: bool,
) -> Reading:
    """Fused, with fewer heads for keys and values: all queries first, or group by group as in Falcon."""
    heads, groups, d = sizes
    counts = {"q": heads, "k": groups, "v": groups}

    def cut(flat: Tensor) -> dict[str, Tensor]:  # [..., columns] -> role -> [heads, ..., d]
        if by_group:
            blocks = flat.unflatten(-1, (groups, heads // groups + 2, d))
            parts = dict(zip(letters, blocks.split([counts[role] // groups for role in letters], -2), strict=True))
            return {role: part.flatten(-3, -2).movedim(-2, 0) for role, part in parts.items()}
        pieces = flat.split([counts[role] * d for role in letters], -1)
        return {
            role: piece.unflatten(-1, (counts[role], d)).movedim(-2, 0)
            for role, piece in zip(letters, pieces, strict=True)
        }

    biases: dict[str, Tensor | None] = dict.fromkeys("qkv")
    if m.bias is not None:
        biases |= cut(m.bias)
    layout = "groups of q k v" if by_group else ""
    return Reading(cut(tensor), biases, names, "fused", layout, certain, m.oriented)
