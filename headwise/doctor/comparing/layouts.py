"""How a module's parameters store the four matrices of an attention: every possible layout, the most likely first.

A matrix is converted to one standard form for every module, so that two modules can exchange theirs: q [H, D, M],
k [G, D, M], v [G, E, M], o [Mo, H, E], and biases without M.
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import re
import types
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from headwise.doctor.comparing.dimensions import Dimensions
from headwise.doctor.reading.projection_names import read_name

WEIGHTS = ("q.weight", "k.weight", "v.weight", "o.weight")
SLOTS = (*WEIGHTS, "q.bias", "k.bias", "v.bias", "o.bias")
_NOT_USED = 6.0  # the cost of leaving a parameter out; an unusual order of its axes costs 1
_CLASH = 5.0  # its name says another role
_MOST_LOOKED_AT = 50_000
_AGAINST_LINEAR = 8.0  # an nn.Linear holds [out, in]


@dataclasses.dataclass(frozen=True)
class Layout:
    """How a parameter (or several, one per head) stores one or more matrices."""

    parameters: tuple[str, ...]
    slots: tuple[str, ...]  # the matrices it stores; several are fused
    axes: str  # their order in the parameter: r(ole), h(ead), d, m (input), o(utput)
    shape: tuple[int, ...]  # of the parameter with those axes separate
    blocks: tuple[int, ...] = ()  # fused with different sizes: the length of each, along the first or last axis
    shared: bool = False  # one D × D matrix for all heads
    heads: int = 1  # the number of heads that share it

    def read(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The matrices in the standard form. Differentiable."""
        whole = self._join(values)
        if self.blocks:
            along = self.axes.index("r")
            parts = whole.split(self.blocks, dim=along)
            return {slot: self._apart(part, slot) for slot, part in zip(self.slots, parts, strict=True)}
        if self.shared:
            return {self.slots[0]: _over_heads(whole if self.axes == "dm" else whole.mT, self.heads)}
        there = "".join(letter for letter in "rohdm" if letter in self.axes)
        ordered = whole.reshape(self.shape).permute([self.axes.index(letter) for letter in there])
        return dict(zip(self.slots, ordered if "r" in self.axes else (ordered,), strict=True))

    def write(self, matrices: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        """Write matrices in the standard form into the parameters."""
        parts = [matrices[slot] for slot in self.slots]
        if self.blocks:
            flat = [part.reshape(-1, part.shape[-1]) if part.ndim == 3 else part.reshape(-1) for part in parts]
            whole = torch.cat([part if self.axes[0] == "r" else part.mT for part in flat], dim=self.axes.index("r"))
        elif self.shared:
            width = self.shape[0]
            block = parts[0][0, :, :width] if parts[0].ndim == 3 else parts[0][0]
            whole = block if self.axes != "md" else block.mT
        else:
            there = "".join(letter for letter in "rohdm" if letter in self.axes)
            joined = torch.stack(parts) if "r" in self.axes else parts[0]
            whole = joined.permute([there.index(letter) for letter in self.axes])
        targets = [into[name] for name in self.parameters]
        pieces = whole.reshape(len(targets), *targets[0].shape) if len(targets) > 1 else [whole]
        for target, piece in zip(targets, pieces, strict=True):
            target.copy_(piece.reshape(target.shape))

    def describe(self, slot: str) -> str:
        """ "in_proj_weight[1 of 3]", and what is unusual about it."""
        first = self.parameters[0]
        name = first if len(self.parameters) == 1 else f"{first} … {self.parameters[-1]}"
        if len(self.slots) > 1:
            name += f" [{self.slots.index(slot) + 1} of {len(self.slots)}]"
        said = []
        if "h" in self.axes and self.axes.index("d") < self.axes.index("h"):
            said.append("heads innermost")
        if self.axes.endswith("r"):
            said.append("fused innermost")
        elif "r" in self.axes and "h" in self.axes and self.axes.index("h") < self.axes.index("r"):
            said.append("fused head by head")
        if self.shared:
            said.append("shared by the heads")
        if _is_transposed(self):
            said.append("[in, out]")
        return f"{name} ({', '.join(said)})" if said else name

    def _join(self, values: Mapping[str, Tensor]) -> Tensor:
        tensors = [values[name] for name in self.parameters]
        return torch.stack(tensors) if len(tensors) > 1 else tensors[0]

    def _apart(self, part: Tensor, slot: str) -> Tensor:
        if part.ndim == 2 and self.axes[0] != "r":
            part = part.mT
        heads = self.shape[self.slots.index(slot)]
        return part.reshape(heads, part.shape[0] // heads, *part.shape[1:])


def _over_heads(small: Tensor, heads: int) -> Tensor:
    """The matrix [H, D, H·D] (or bias [H, D]) that equals a small one applied by every head to its own slice."""
    if small.ndim == 1:
        return small.expand(heads, -1)
    eye = torch.eye(heads, dtype=small.dtype, device=small.device)
    return torch.einsum("gh,dm->gdhm", eye, small).reshape(heads, small.shape[0], heads * small.shape[1])


@dataclasses.dataclass(frozen=True)
class Holding:
    """How all of a module's parameters store its attention."""

    layouts: tuple[Layout, ...]
    left: tuple[str, ...]  # parameters that store none of the four
    cost: float  # how unlikely it is, by names and conventions
    sizes: Dimensions

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each stored matrix in the standard form."""
        return {slot: tuple(self.sizes.shape(slot).values()) for slot in self.places}

    @property
    def places(self) -> dict[str, Layout]:
        return {slot: layout for layout in self.layouts for slot in layout.slots}

    def read(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {slot: matrix for layout in self.layouts for slot, matrix in layout.read(values).items()}

    def write(self, matrices: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
        for layout in self.layouts:
            layout.write(matrices, into)


@dataclasses.dataclass(frozen=True)
class _Option:
    """What one group of parameters (a Linear's weight and bias) may store; `layouts` is empty if nothing."""

    layouts: tuple[Layout, ...]
    cost: float


def holdings(
    module: nn.Module, sizes: Dimensions, seen: Mapping[str, str] = types.MappingProxyType({})
) -> Iterator[Holding]:
    """Every way in which the module's parameters may store its attention, the most likely first.

    `seen` gives the role ("q", "qkv", "o") of parameters whose names do not tell it, as found in a forward.
    """
    units = [_options(unit, module, sizes, seen) for unit in _units(module, sizes, seen)]
    names = [name for name, _ in module.named_parameters()]
    for options, cost in itertools.islice(_cheapest_first(units), _MOST_LOOKED_AT):
        layouts = tuple(layout for option in options for layout in option.layouts)
        slots = [slot for layout in layouts for slot in layout.slots]
        if len(set(slots)) < len(slots):
            continue
        used = {name for layout in layouts for name in layout.parameters}
        left = tuple(name for name in names if name not in used)
        yield Holding(layouts, left, cost + _disorder(layouts, names), sizes)


def _cheapest_first(units: Sequence[Sequence[_Option]]) -> Iterator[tuple[list[_Option], float]]:
    """All choices of one option per unit, by their total cost."""
    start = (0,) * len(units)
    queue = [(sum(unit[0].cost for unit in units), start)]
    seen = {start}
    while queue:
        cost, chosen = heapq.heappop(queue)
        yield [unit[i] for unit, i in zip(units, chosen, strict=True)], cost
        for at, (unit, i) in enumerate(zip(units, chosen, strict=True)):
            if i + 1 < len(unit):
                nearby = (*chosen[:at], i + 1, *chosen[at + 1 :])
                if nearby not in seen:
                    seen.add(nearby)
                    heapq.heappush(queue, (cost - unit[i].cost + unit[i + 1].cost, nearby))


def _disorder(layouts: Sequence[Layout], names: Sequence[str]) -> float:
    """A small cost for each pair that is registered in another order than q, k, v, o."""
    order = {slot: names.index(layout.parameters[0]) for layout in layouts for slot in layout.slots}
    there = [order[slot] for slot in WEIGHTS if slot in order]
    return 0.01 * sum(a > b for a, b in itertools.combinations(there, 2))


def _units(module: nn.Module, sizes: Dimensions, seen: Mapping[str, str]) -> list[tuple[tuple[str, ...], ...]]:
    """The parameters in groups that belong together: (weight,), (weight, bias), each a tuple of names, one per head."""
    parameters = dict(module.named_parameters())
    stacks: dict[str, list[str]] = {}
    for name in parameters:
        for found in re.finditer(r"(?<![^.])\d+(?![^.])", name):  # a number that is a component of the path
            stacks.setdefault(f"{name[: found.start()]}*{name[found.end() :]}", []).append(name)
    groups: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for alike in stacks.values():
        one_shape = len({parameters[name].shape for name in alike}) == 1
        one_role = len({roles_said(name) or seen.get(name, "") for name in alike}) == 1
        as_many = len(alike) in {sizes.heads, sizes.kv_heads} - {1}
        if as_many and one_shape and one_role and taken.isdisjoint(alike) and _fits_a_head(parameters[alike[0]], sizes):
            groups.append(tuple(alike))
            taken.update(alike)
    groups += [(name,) for name in parameters if name not in taken]
    groups.sort(key=lambda names: list(parameters).index(names[0]))
    units: list[tuple[tuple[str, ...], ...]] = []
    for names in groups:
        owner, _, leaf = names[0].rpartition(".")
        before = units[-1][0][0].rpartition(".") if units and len(units[-1]) == 1 else None
        if leaf == "bias" and owner and before is not None and before[0] == owner and len(units[-1][0]) == len(names):
            units[-1] = (units[-1][0], names)
        else:
            units.append((names,))
    return units


def _fits_a_head(x: Tensor, sizes: Dimensions) -> bool:
    """Whether a parameter may be one head's part of q, k, v or several of them."""
    inputs = {1} if x.ndim == 1 else {sizes.query, sizes.key, sizes.value}
    return x.numel() in {n * width * m for n in (1, 2, 3) for width in (sizes.head, sizes.value_head) for m in inputs}


def _options(
    unit: Sequence[tuple[str, ...]], module: nn.Module, sizes: Dimensions, seen: Mapping[str, str]
) -> list[_Option]:
    """What a unit may store, the most likely first."""
    parameters = dict(module.named_parameters())
    name = unit[0][0]
    said = roles_said(name) or seen.get(name, "")
    linear = isinstance(module.get_submodule(name.rpartition(".")[0]), nn.Linear)
    found = [_Option((), 0.0 if said == "none" else _NOT_USED)]
    kinds = ("weight", "bias") if len(unit) == 1 else ("weight",)
    for kind in kinds:
        for layout, cost in _layouts(unit[0], parameters[name], kind, sizes):
            roles = "".join(slot[0] for slot in layout.slots)
            cost += _against_name(roles, said) + (_AGAINST_LINEAR if linear and _is_transposed(layout) else 0.0)
            layouts: tuple[Layout, ...] = (layout,)
            if len(unit) == 2:
                bias = _like(layout, unit[1], parameters[unit[1][0]], sizes)
                if bias is None:
                    continue
                layouts = (layout, bias)
            found.append(_Option(layouts, cost))
    return sorted(found, key=lambda option: option.cost)


def _is_transposed(layout: Layout) -> bool:
    """Whether a weight is stored as [in, out]."""
    if "bias" in layout.slots[0]:
        return False
    return layout.axes[0] != "o" if layout.slots == ("o.weight",) else layout.axes[0] == "m"


def _like(weight: Layout, names: tuple[str, ...], bias: Tensor, sizes: Dimensions) -> Layout | None:
    """The bias of the same unit: its axes are in the order of the weight's."""
    slots = tuple(slot.replace("weight", "bias") for slot in weight.slots)
    axes = "o" if slots == ("o.bias",) else weight.axes.replace("m", "")
    for layout, _ in _layouts(names, bias, "bias", sizes):
        if (layout.slots, layout.axes, layout.shared) == (slots, axes, weight.shared):
            return layout
    return None


_FUSED = [
    *itertools.permutations("qkv"),
    *itertools.permutations("kv"),
    *itertools.permutations("qk"),
]


def _layouts(names: tuple[str, ...], parameter: Tensor, kind: str, sizes: Dimensions) -> Iterator[tuple[Layout, float]]:
    """Each layout that fits the shape, and its cost by its axes alone."""
    shape = tuple(size for size in (len(names), *parameter.shape) if size != 1) or (1,)
    for roles in [("q",), ("k",), ("v",), ("o",), *_FUSED]:
        slots = tuple(f"{role}.{kind}" for role in roles)
        forms = [sizes.shape(slot) for slot in slots]
        usual = "".join(roles) in ("q", "k", "v", "o", "qkv", "kv", "qk")
        extra = 0.0 if usual else 1.0
        if len(roles) > 1 and any(form != forms[0] for form in forms):
            yield from ((x, extra) for x in _blocks(names, slots, shape, forms))
            continue
        lengths = {"r": len(roles), **forms[0]} if len(roles) > 1 else forms[0]
        for axes in map("".join, itertools.permutations(lengths)):
            if _fits(axes, lengths, shape):
                there = tuple(lengths[letter] for letter in axes)
                yield Layout(names, slots, axes, there), extra + _unusual(axes, lengths)
        if len(roles) == 1 and roles != ("o",):
            yield from _shared(names, slots[0], shape, sizes)


def _fits(axes: str, lengths: Mapping[str, int], shape: tuple[int, ...]) -> bool:
    """Whether the axes, in this order, make up the shape: each dimension of it is one axis or several adjacent ones."""
    at = 0
    for length in shape:
        product, alone = 1, 0
        while at < len(axes) and (product < length or lengths[axes[at]] == 1):
            product *= lengths[axes[at]]
            alone += axes[at] in "mo" and lengths[axes[at]] > 1
            at += 1
        # what is multiplied and added up, or comes out, has a dimension of its own
        if product != length or (alone and product != max(lengths.get("m", 0), lengths.get("o", 0))):
            return False
    return at == len(axes)


def _unusual(axes: str, lengths: Mapping[str, int]) -> float:
    cost = 0.0
    if lengths.get("h", 1) > 1 and lengths.get("d", 1) > 1 and axes.index("d") < axes.index("h"):
        cost += 1.0
    if "r" in axes:
        cost += 0.6 * sum(axes.index(letter) < axes.index("r") for letter in "hd" if lengths[letter] > 1)
    if "m" in axes and axes[-1] != "m":
        cost += 0.3
    if "o" in axes and axes[0] != "o":
        cost += 0.3
    return cost


def _blocks(
    names: tuple[str, ...], slots: tuple[str, ...], shape: tuple[int, ...], forms: Sequence[Mapping[str, int]]
) -> Iterator[Layout]:
    """Fused matrices of different sizes (fewer key heads than query heads), one after the other."""
    widths = {form.get("m") for form in forms}
    blocks = tuple(form["h"] * form["d"] for form in forms)
    heads = tuple(form["h"] for form in forms)
    if len(names) > 1 or len(widths) > 1:
        return
    width = widths.pop()
    if width is None:
        if shape == (sum(blocks),):
            yield Layout(names, slots, "rhd", heads, blocks)
        return
    if shape == (sum(blocks), width):
        yield Layout(names, slots, "rhdm", heads, blocks)
    if shape == (width, sum(blocks)):
        yield Layout(names, slots, "mr", heads, blocks)


def _shared(
    names: tuple[str, ...], slot: str, shape: tuple[int, ...], sizes: Dimensions
) -> Iterator[tuple[Layout, float]]:
    form = sizes.shape(slot)
    if len(names) > 1 or form["h"] == 1:
        return
    if "m" not in form:
        if shape == (form["d"],):
            yield Layout(names, (slot,), "d", shape, shared=True, heads=form["h"]), 0.5
    elif shape == (form["d"],) * 2 and form["m"] == form["h"] * form["d"]:
        yield Layout(names, (slot,), "dm", shape, shared=True, heads=form["h"]), 0.5
        yield Layout(names, (slot,), "md", shape, shared=True, heads=form["h"]), 0.8


_NEVER = re.compile(
    r"norm|(^|[._])(ln|sinks?|gate|alibi|rel|relative|emb|embedding|scale|temperature)([._\d]|$)", re.IGNORECASE
)


def roles_said(name: str) -> str:
    """The role that a parameter's name states: "q", "kv", "qkv", "o" …; "none" if another; "" if it states nothing.

    >>> roles_said("attn.to_qkv.weight"), roles_said("W_Q"), roles_said("c_proj.weight"), roles_said("linears.0.weight")
    ('qkv', 'q', 'o', '')
    """
    if _NEVER.search(name):
        return "none"
    owner, _, leaf = name.rpartition(".")
    named = read_name(owner if leaf in ("weight", "bias", "kernel") and owner else name)
    return named.letters or ("o" if named.is_output else "qkv" if named.is_fused else "")


def _against_name(roles: str, said: str) -> float:
    if said in ("", roles):
        return 0.0
    if said == "none":
        return _NOT_USED
    return 0.5 if sorted(said) == sorted(roles) else _CLASH
